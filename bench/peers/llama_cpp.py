"""llama.cpp's own server, out of the xllamacpp package: `llama_cpp.py FILE.gguf PORT CONTEXT`, with that Python."""

from __future__ import annotations

import signal
import sys
import threading

import xllamacpp

SLOTS = 16
"""Requests at once; oMLX's own default on a machine with enough memory."""


def main() -> None:
    path, port, context = sys.argv[1:4]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_parallel = SLOTS
    params.n_ctx = int(context) * SLOTS
    params.use_jinja = True
    server = xllamacpp.Server(params)
    print(f"listening at {server.listening_address}", flush=True)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()


if __name__ == "__main__":
    main()
