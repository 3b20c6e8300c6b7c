"""A stand-in for a server that misbehaves: it answers scripted bytes, breaks connections and dawdles.

Only for what a real server cannot be made to do. It records the requests it got.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Action = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request: the script's action for its method and path, else 404."""

    protocol_version = "HTTP/1.1"
    standin: StandIn

    def _act(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = self._read_chunks()
        self.standin.requests.append((self.command, self.path, body))
        action = self.standin.script.get(f"{self.command} {self.path}")
        if self.command == "HEAD" and self.path == "/" and action is None:
            action = answer(200, b"", x_omlx_version="0")
        (action or answer(404, b"404 page not found"))(self)

    do_GET = do_POST = do_HEAD = do_DELETE = _act

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: Any) -> None:
        pass


def answer(status: int, body: bytes | dict[str, Any], **headers: str) -> Action:
    """A whole answer; a dict becomes JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def act(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    return act


def stream(lines: Iterable[dict[str, Any] | bytes], *, pause_s: float = 0.0, broken: bool = False) -> Action:
    """NDJSON lines in chunks, `pause_s` after each; `broken`: the connection ends without the last chunk."""

    def act(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/x-ndjson")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for line in lines:
            content = line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            handler.wfile.flush()
            time.sleep(pause_s)
        if not broken:
            handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = broken

    return act


SHOWN = {
    "modelfile": "FROM m",
    "details": {
        "parent_model": "", "format": "safetensors", "family": "llama", "families": ["llama"],
        "parameter_size": "1M", "quantization_level": "F32",
    },
    "model_info": {"general.architecture": "llama", "llama.context_length": 4096},
    "capabilities": ["completion"],
    "modified_at": "2026-01-01T00:00:00Z",
}  # fmt: skip


def piece(text: str, **fields: Any) -> dict[str, Any]:
    """A line of /api/generate."""
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "response": text, "done": False, **fields}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what is tested here."""


class StandIn:
    """Use as `with StandIn({"POST /api/show": answer(200, SHOWN)}) as standin:`; `url` is its address."""

    def __init__(self, script: dict[str, Action]) -> None:
        self.script = script
        self.requests: list[tuple[str, str, bytes]] = []
        kind = type("Bound", (Handler,), {"standin": self})
        self._server = _Server(("127.0.0.1", 0), kind)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def body_of(self, path: str) -> dict[str, Any]:
        """The last JSON body posted to `path`."""
        body = next(body for _, where, body in reversed(self.requests) if where == path)
        found: dict[str, Any] = json.loads(body)
        return found

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
