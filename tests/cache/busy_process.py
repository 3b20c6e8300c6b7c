"""A process that writes to and reads from a cache folder until it is stopped; run as a program by the fault tests.

What it writes can be checked by anyone: a record's bytes follow from its key. Imports no MLX, so it starts at once.

    busy_process.py FOLDER SEED CAP SECONDS     prints "ready", then at the end counts as JSON
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import msgspec
from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.keys import namespace
from omlx_cache.record_file import HostArray, HostRecord, Identity
from omlx_cache.records import Kind, Piece, RecordName

NAMESPACE = namespace("busy", "", 16)
LARGEST = 60_000


def content(name: RecordName) -> bytes:
    """The bytes that a record of this name has."""
    size = 1000 + int.from_bytes(name.key[:2], "big") % (LARGEST - 1000)
    return (name.key * (size // 32 + 1))[:size]


def host_record(piece: Piece, kind: Kind = Kind.KV) -> HostRecord:
    data = content(RecordName(piece.key, kind))
    return HostRecord(Identity(piece, kind, NAMESPACE), (HostArray("U8", (len(data),), memoryview(data)),), "")


def open_tier(folder: Path, cap: int, **settings: object) -> ColdTier:
    return ColdTier(folder, NAMESPACE, model="busy", max_bytes=cap, **settings)  # type: ignore[arg-type]


def pieces(seed: int) -> list[Piece]:
    """The pieces of a short chain; neighbouring seeds share their beginning."""
    tokens = [seed // 10] * 32 + [seed] * 32
    return Chain(NAMESPACE, 16, tokens).blocks


def main(folder: str, seed: str, cap: str, seconds: str) -> None:
    tier = open_tier(Path(folder), int(cap), queue_bytes=1 << 20)
    print("ready", flush=True)
    source, end = random.Random(int(seed)), time.monotonic() + float(seconds)
    wrong = read = 0
    while time.monotonic() < end:
        for piece in pieces(source.randrange(100)):
            tier.write(host_record(piece), time.time(), None)
        found = tier.find([piece.key for piece in pieces(source.randrange(100))])
        for name, host in tier.read(list(found)).items():
            read += 1
            wrong += bytes(host.arrays[0].data) != content(name)
        tier.touch(list(found))
        tier.done()
        time.sleep(0.002)
    tier.close(10)
    counts = msgspec.to_builtins(tier.snapshot())
    print(json.dumps({"wrong": wrong, "read": read, "problem": tier.problem, **counts}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
