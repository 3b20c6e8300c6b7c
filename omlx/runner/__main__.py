"""The runner process: `python -m omlx.runner FD`, where FD is its end of a socket pair with the server.

Life of a runner: prepare the BLAS, import MLX and the engine, say `Hello`, wait for `Load`, load, say `Ready`, then
serve requests until `Shutdown` or until the socket ends. The order of imports matters: a BLAS that is loaded after MLX
has no effect, so nothing that imports MLX may be imported at the top of this file.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys

from omlx_registry.open_files import limits_kept

from omlx.engine import blas
from omlx.runner.channel import SERVER_GONE, Channel
from omlx.runner.process import set_log_level

log = logging.getLogger("omlx.runner")

_PR_SET_PDEATHSIG = 1


def main(fd: int) -> int:
    die_with_the_server()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s: %(message)s")
    set_log_level()
    channel = Channel(socket.socket(fileno=fd))
    channel.start()
    # The I/O threads get their turn within half a millisecond, even while the main thread builds graphs.
    sys.setswitchinterval(0.0005)
    used = blas.prepare()
    with limits_kept():
        from omlx.runner.serve import Runner  # imports MLX, whose libraries change the limits

    return Runner(channel, used).run()


def die_with_the_server() -> None:
    """On Linux the kernel ends this process together with the server, should the end of the socket not do it."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(SERVER_GONE)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
