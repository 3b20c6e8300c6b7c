"""A process that writes records to a cache folder and says what that cost; run as a program. Imports no MLX.

writing_process.py FOLDER RECORDS SIZE     prints the bytes of its records, and all bytes that it wrote
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.keys import namespace
from omlx_cache.record_file import HostArray, HostRecord, Identity
from omlx_cache.records import Kind

SPACE = namespace("writing", "", 256)


def main(folder: str, records: str, size: str) -> None:
    tier = ColdTier(Path(folder), SPACE, model="writing", max_bytes=10 << 30)
    data = os.urandom(int(size))
    before = psutil.Process().io_counters().write_chars
    pieces = [
        piece
        for conversation in range(-(-int(records) // 8))
        for piece in Chain(SPACE, 256, [*os.urandom(4), conversation, *range(2100)]).blocks
    ][: int(records)]
    for piece in pieces:
        host = HostRecord(Identity(piece, Kind.KV, SPACE), (HostArray("U8", (len(data),), memoryview(data)),), "")
        while not tier.write(host, time.time(), None):
            tier.done()
            time.sleep(0.01)
    tier.close(60)
    written = psutil.Process().io_counters().write_chars - before
    print(tier.snapshot().written * len(data), written, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
