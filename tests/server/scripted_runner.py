"""A runner program that does what the prompt says, so that HTTP tests choose what the model "answers" and when.

It speaks the real frames over the real socket. Commands, as the last message's text (or the raw prompt):

    say A B C            three deltas, then a finish          request     the internal request it got, as JSON
    think A / B          thinking, then content               call [NAME [JSON]]    two tool calls, or this one
    logprobs             two tokens with log probabilities    hang        nothing, until cancelled
    begin                one delta, then nothing              fail KIND TEXT    a failure before any output
    break KIND TEXT      a delta, then a failure              die         the process kills itself
    crash                a delta, then the same               many N      N deltas as fast as they go
    mixed                thinking, text, a call, text         cut TEXT    a delta, then the limit is reached
    stop STRING          a delta, then this stop string       cached      a delta; 5 of 7 prompt tokens were cached
    log TEXT             a warning in the log, then a delta
    read A B             A of B prompt tokens are read, then nothing
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from omlx.messages import frames as frames
from omlx.messages.request import Delta, Failure, Finish, GenerateRequest, TokenLogprob, ToolCall

STORE = {"enabled": True, "hot_bytes": 1000, "hot_max_bytes": 8000, "cold_bytes": 30_000, "cold_max_bytes": 90_000,
         "hot_evictions": 4, "cold_counts": {"evicted": 5, "damaged": 2, "written_bytes": 600}}  # fmt: skip
"""What it says of its KV store."""


class Runner:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.open: set[int] = set()
        self.steps = self.generated = self.read = 0

    def send(self, frame: frames.FromRunner) -> None:
        self.connection.sendall(frames.encode(frame))

    def beat(self) -> None:
        self.steps += 1
        count = len(self.open)
        self.send(frames.Heartbeat(steps=self.steps, running=count, waiting=0, memory_bytes=1, max_batch=count,
                                   decode_steps=self.generated, decoded_rows=self.generated, tokens_read=self.read,
                                   tokens_generated=self.generated,
                                   guessed=3 * self.generated, accepted=self.generated))  # fmt: skip

    def receive(self) -> frames.ToRunner:
        header = self.connection.recv(frames.HEADER_SIZE, socket.MSG_WAITALL)
        if len(header) < frames.HEADER_SIZE:
            sys.exit(0)
        return frames.decode_to_runner(self.connection.recv(frames.body_length(header), socket.MSG_WAITALL))

    def run(self) -> None:
        self.send(frames.Hello(pid=os.getpid(), device="cpu", blas="none", versions={}))
        while True:
            match self.receive():
                case frames.Load(spec) if not (config := Path(spec.path, "config.json")).is_file():
                    self.send(frames.LoadFailed(f"[Errno 2] No such file or directory: '{config}'"))
                case frames.Load(spec):
                    self.send(frames.Ready(weights="none", memory_bytes=1000, kv_bytes_per_token=1,
                                           num_ctx=spec.engine.context_length))  # fmt: skip
                case frames.Generate(request):
                    self.open.add(request.id)
                    self.beat()
                    self.answer(request)
                case frames.Cancel(number):
                    self.open.discard(number)
                    self.beat()
                case frames.Embed() as job:
                    self.embed(job)
                case frames.CacheOp() as question:
                    self.send(frames.Reply(question.id, STORE))
                case frames.Shutdown():
                    sys.exit(0)
                case _:
                    pass

    def embed(self, job: frames.Embed) -> None:
        if "fail" in job.inputs:
            self.send(frames.Events([Failure(job.id, "too_long", "the input length exceeds the context length")]))
            return
        vectors = [struct.pack("2f", len(text), 0.1) for text in job.inputs]
        self.send(frames.Embedded(job.id, vectors, sum(len(text) for text in job.inputs)))

    def answer(self, request: GenerateRequest) -> None:
        if request.render_only:
            self.finish(request, rendered=f"<{len(request.messages)} messages>")
            return
        text = request.raw_prompt if request.raw_prompt is not None else request.messages[-1].content
        command, _, rest = text.partition(" ")
        number = request.id
        match command:
            case "cached":
                self.delta(Delta(number, content="ok"))
                why = {"cache_reason": "diverged", "cache_message": "at token 5"}
                self.finish(request, cached_tokens=5, disk_tokens=2, **why)
            case "log":
                print(f"WARNING: [{request.trace}] {rest}", file=sys.stderr, flush=True)
                self.delta(Delta(number, content="ok"))
                self.finish(request)
            case "say":
                for word in rest.split(" "):
                    self.delta(Delta(number, content=word))
                self.finish(request)
            case "many":
                for _ in range(int(rest)):
                    self.delta(Delta(number, content="x"))
                self.finish(request)
            case "think":
                thought, _, said = rest.partition(" / ")
                self.delta(Delta(number, thinking=thought))
                self.delta(Delta(number, content=said))
                self.finish(request)
            case "call" if rest:
                name, _, arguments = rest.partition(" ")
                self.delta(Delta(number, tool_calls=[ToolCall(name, msgspec.json.decode(arguments or "{}"))]))
                self.finish(request)
            case "call":
                self.delta(Delta(number, tool_calls=[ToolCall("f", {"b": 1, "a": "<x>"})]))
                self.delta(Delta(number, tool_calls=[ToolCall("g", {})]))
                self.finish(request)
            case "mixed":
                call = ToolCall("f", {"a": 1})
                for part in (Delta(number, thinking="T"), Delta(number, content="before"),
                             Delta(number, tool_calls=[call]), Delta(number, content="after")):  # fmt: skip
                    self.delta(part)
                self.finish(request)
            case "cut":
                self.delta(Delta(number, content=rest))
                self.finish(request, reason="length")
            case "stop":
                self.delta(Delta(number, content="begun"))
                self.finish(request, stop_string=rest)
            case "logprobs":
                other = TokenLogprob("B", -1.5, [66])
                self.delta(Delta(number, content="A", logprobs=[TokenLogprob("A", -0.5, [65], [other])]))
                self.delta(Delta(number, logprobs=[TokenLogprob("", -0.25)]))
                self.finish(request)
            case "request":
                self.delta(Delta(number, content=msgspec.json.encode(request, enc_hook=_encode).decode()))
                self.finish(request)
            case "begin":
                self.delta(Delta(number, content="begun"))
            case "until":  # there is such a file
                self.delta(Delta(number, content="begun"))
                while not Path(rest).exists():
                    time.sleep(0.01)
                self.delta(Delta(number, content=" and ended"))
                self.finish(request)
            case "fail":
                self.fail(number, rest)
            case "break":
                self.delta(Delta(number, content="begun"))
                self.fail(number, rest)
            case "die":
                os.kill(os.getpid(), 9)
            case "crash":
                self.delta(Delta(number, content="begun"))
                os.kill(os.getpid(), 9)
            case "read":
                done, total = map(int, rest.split())
                self.send(frames.PrefillProgress(number, done, total))
            case "hang":
                pass
            case _:
                self.delta(Delta(number, content=f"no such command: {text[:40]}"))
                self.finish(request)

    def delta(self, delta: Delta) -> None:
        self.generated += 1
        self.send(frames.Events([delta]))

    def fail(self, number: int, rest: str) -> None:
        kind, _, message = rest.partition(" ")
        self.open.discard(number)
        self.send(frames.Events([Failure(number, kind, message)]))  # type: ignore[arg-type]
        self.beat()

    def finish(self, request: GenerateRequest, **fields: Any) -> None:
        self.open.discard(request.id)
        self.read += 7
        context = [1, 2, 3] if request.return_context else []
        done = Finish(id=request.id, prompt_tokens=7, completion_tokens=3, prompt_ns=500, generation_ns=0,
                      context=context, **{"reason": "stop", **fields})  # fmt: skip
        self.send(frames.Events([done]))
        self.beat()


def _encode(value: Any) -> Any:
    return base64.b64encode(value).decode()


if __name__ == "__main__":
    Runner(socket.socket(fileno=int(sys.argv[1]))).run()
