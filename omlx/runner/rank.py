"""One rank of a distributed model: `python -m omlx.runner.rank SOCKET BACKEND CONTROL PARALLEL`, as `launch` starts it.

Rank 0 is a runner like any other: it speaks frames with the server, over the Unix socket SOCKET. The other ranks hear
from rank 0 alone (at CONTROL, HOST:PORT): first what to load, then what the engine is to do.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING

from omlx_registry.open_files import limits_kept

from omlx.engine import blas
from omlx.runner.__main__ import die_with_the_server
from omlx.runner.channel import Channel
from omlx.runner.process import set_log_level

if TYPE_CHECKING:
    from omlx.runner.group import Group

log = logging.getLogger("omlx.runner")


def main(server: str, backend: str, control: str, parallel: str) -> int:
    die_with_the_server()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    rank = int(os.environ.get("MLX_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
    where = "" if rank == 0 else f"rank {rank}: "
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"%(levelname)s: {where}%(message)s")
    set_log_level()
    secret = os.environ.pop("OMLX_GROUP_SECRET", "")
    used = blas.prepare()

    def join() -> Group:
        with limits_kept():
            from omlx.runner.group import join_group  # imports MLX, as the modules below do

        return join_group(backend, control, secret, parallel)  # type: ignore[arg-type]

    if rank == 0:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(server)
        channel = Channel(connection)
        channel.start()
        sys.setswitchinterval(0.0005)
        with limits_kept():
            from omlx.runner.serve import Runner  # imports MLX

        return Runner(channel, used, join).run()
    with limits_kept():
        from omlx.runner.follow import follow  # rank 0 has no use for it

    return follow(join())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
