"""A runner program that misbehaves on demand, in ways the real one cannot be told to: `faulty_runner.py FAULT FD`.

It speaks the real frames, knows no MLX and echoes the last message word by word. "FAULT@FILE" has the fault only
while FILE exists, and removes it; "waits@FILE" says nothing before FILE is gone. It starts within a fraction of the
time of a real one: tests of what the pool decides use it without a fault ("none").
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from omlx.messages.frames import (
    HEADER_SIZE,
    Cancel,
    Events,
    FromRunner,
    Generate,
    GetStats,
    Heartbeat,
    Hello,
    HotCacheShare,
    Load,
    LoadFailed,
    Loading,
    Ready,
    Reply,
    Shutdown,
    body_length,
    decode_to_runner,
    encode,
)
from omlx.messages.request import Delta, Finish, GenerateRequest


def main(fault: str, fd: int) -> None:
    connection = socket.socket(fileno=fd)
    fault, _, flag = fault.partition("@")
    if fault == "waits":
        while Path(flag).exists():
            time.sleep(0.01)
    elif flag:
        if Path(flag).exists():
            Path(flag).unlink()
        else:
            fault = "none"

    def send(frame: FromRunner) -> None:
        connection.sendall(encode(frame))

    def receive() -> bytes:
        header = connection.recv(HEADER_SIZE, socket.MSG_WAITALL)
        if len(header) < HEADER_SIZE:
            sys.exit(0)
        return connection.recv(body_length(header), socket.MSG_WAITALL)

    if fault == "dies-at-start":
        sys.exit(7)
    if fault == "on-a-gpu":
        send(Hello(pid=os.getpid(), device="cuda", blas="none", versions={}, device_memory=2_000_000_000))
    else:
        send(Hello(pid=os.getpid(), device="cpu", blas="none", versions={}))
    ballast: list[bytes] = []
    while True:
        match decode_to_runner(receive()):
            case Load(spec):
                for done in range(4):
                    send(Loading(done, 4))
                    time.sleep(0.6 if fault == "slow-load" else 0)
                if fault == "dies-loading":
                    os.kill(os.getpid(), 9)
                if fault == "hangs-loading":
                    time.sleep(600)
                if fault == "refuses":
                    send(LoadFailed("config.json is missing"))
                    continue
                if fault == "garbage":
                    connection.sendall(b"\x00\x00\x00\x05hello")
                    time.sleep(60)
                if fault == "endless-frame":
                    connection.sendall(b"\xff\xff\xff\xff")
                    time.sleep(60)
                print("WARNING: the weights look odd", flush=True)
                ready = Ready(weights="none", memory_bytes=1000, kv_bytes_per_token=1,
                              num_ctx=spec.engine.context_length)  # fmt: skip
                send(ready)
            case HotCacheShare() if fault == "hungry" and not ballast:  # after the load, which has a limit
                ballast.append(b"\1" * 400_000_000)
            case HotCacheShare() if fault == "on-a-gpu":  # half of it in use, half in buffers that MLX keeps
                half = 600_000_000
                send(Heartbeat(steps=0, running=0, waiting=0, memory_bytes=half, max_batch=0, buffer_bytes=half))
            case Generate(request):
                if fault == "dies-at-request":
                    os.kill(os.getpid(), 9)
                if fault == "stalls":
                    while True:  # alive, with heartbeats, but no step
                        send(Heartbeat(steps=1, running=1, waiting=0, memory_bytes=1, max_batch=1))
                        time.sleep(0.05)
                answer(send, request, dies=fault == "dies-in-stream", flood=fault == "floods")
            case Shutdown():
                if fault == "ignores-shutdown":
                    import signal

                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(600)
                sys.exit(0)
            case GetStats(number):
                send(Reply(number, {}))
            case Cancel():
                pass
            case _:
                pass


def answer(send: object, request: GenerateRequest, *, dies: bool, flood: bool) -> None:
    assert callable(send)
    words = request.messages[-1].content.split(" ")
    for number, word in enumerate(words * (2_000 if flood else 1)):
        if dies and number == 2:
            os.kill(os.getpid(), 9)
        send(Events([Delta(request.id, content=word + " ")]))
    send(Events([Finish(id=request.id, reason="stop", prompt_tokens=1, completion_tokens=len(words))]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
