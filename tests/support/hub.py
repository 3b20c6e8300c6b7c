"""A stand-in for the Hugging Face Hub on loopback, with faults on demand.

It serves folders as repositories the way huggingface_hub sees them: model info, tree listing, resolve, redirect to a
"CDN" on a second port, Range. The real huggingface_hub client talks to it through HF_ENDPOINT.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS_FROM = 100_000
"""Files of at least this many bytes are "LFS" files: listed with their SHA-256."""


@dataclass
class Faults:
    """What goes wrong; tests set and clear these while the hub runs."""

    api_status: int = 0
    """Answer this to API calls (401, 403, 404, 429, 500)."""
    gated: bool = False
    """The repository needs a licence to be accepted: 401 without a token, 403 with one."""
    message: str = ""
    """What the Hub says beside `gated` or `api_status`."""
    file_status: list[int] = field(default_factory=list)
    """Answer these to the next file requests, one after another."""
    retry_after: str = ""
    drop_after: list[int] = field(default_factory=list)
    """Close the connection after so many bytes of the body, for the next file requests, one after another."""
    flip_byte: bool = False
    """Send a changed byte in every LFS file."""
    flip_small: bool = False
    """Send a changed byte in every other file."""
    no_range: bool = False
    portal: bool = False
    """Answer with a web page, as the portal of a hotel's network does."""
    expired: int = 0
    """Refuse so many ranged requests at the CDN: an address that was signed for a while."""
    bytes_per_s: float = 0.0


class FakeHub:
    """`with FakeHub(root) as hub:` serves `root/ORG/NAME/*`; `hub.url` is the endpoint.

    `root/ORG/NAME@REVISION/*` are the files of another branch or tag.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = Faults()
        self.requests: Counter[str] = Counter()
        """GET requests by file name, and "api" and "search"."""
        self.sent: Counter[str] = Counter()
        """Body bytes sent by file name."""
        self.most_at_once = 0
        """The largest number of large bodies that were being sent at one time."""
        self.sending = 0
        self._counting = threading.Lock()
        self._known: dict[Path, tuple[int, bytes, str]] = {}
        """File contents and their SHA-256, by path, with the modification time they belong to."""
        self.uploads: dict[str, bytes] = {}
        self.authorizations: dict[str, set[str]] = {"hub": set(), "cdn": set()}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.handle(self)

            do_HEAD = do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def reset(self) -> None:
        """No faults, no counts."""
        self.faults = Faults()
        self.requests.clear()
        self.sent.clear()
        self.most_at_once = 0

    @property
    def bytes_sent(self) -> int:
        return self.sent.total()

    @property
    def env(self) -> dict[str, str]:
        """Environment for a process that shall take this for the Hub."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def commit(self, repository: str) -> str:
        """A commit id that changes with the files."""
        digest = hashlib.sha1(usedforsecurity=False)
        for path in sorted((self.root / repository).rglob("*")):
            if path.is_file():
                digest.update(str(path).encode() + self._content(path)[1].encode())
        return digest.hexdigest()

    def _content(self, path: Path) -> tuple[bytes, str]:
        """A file and its SHA-256; read once for all ranges of it."""
        changed = path.stat().st_mtime_ns
        if path not in self._known or self._known[path][0] != changed:
            content = path.read_bytes()
            self._known[path] = changed, content, hashlib.sha256(content).hexdigest()
        return self._known[path][1:]

    # ------------------------------------------------------------ requests
    def handle(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        on_cdn = request.server is self._servers[1]
        if self.faults.portal:
            page = b"<html><body>Please sign in</body></html>"
            self._answer(request, 200, page, {"Content-Type": "text/html; charset=utf-8"})
            return
        self.authorizations["cdn" if on_cdn else "hub"].add(request.headers.get("Authorization", ""))
        if request.command in {"POST", "PUT"}:
            self._upload(request, path, _body(request))
        elif path == "/api/models":
            self._search(request)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self.requests["api"] += 1
            self._api(request, self._at(found[1], found[3]), found[2] == "tree")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(request, self._at(found[1], found[2]) or found[1], found[3], on_cdn)
        else:
            self._answer(request, 404, b"{}")

    def _at(self, repository: str, revision: str | None) -> str:
        """The folder of a repository at a branch, tag or commit; "" where there is no such revision."""
        if revision in {None, "main"}:
            return repository
        others = (path.relative_to(self.root).as_posix() for path in self.root.glob(f"{repository}@*"))
        folders = [repository, *others]
        return next((it for it in folders if revision in {it.partition("@")[2], self.commit(it)}), "")

    def _api(self, request: BaseHTTPRequestHandler, repository: str, tree: bool) -> None:
        folder = self.root / repository
        if self.faults.api_status:
            self._answer(request, self.faults.api_status, b'{"error":"fault"}', self._retry_headers())
        elif self.faults.gated:
            headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": self.faults.message}
            self._answer(request, 403 if request.headers.get("Authorization") else 401, b'{"error":"gated"}', headers)
        elif not repository:
            self._answer(request, 404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
        elif not folder.is_dir():
            self._answer(request, 404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        else:
            body: Any = (
                self._tree(folder) if tree else {"id": repository, "sha": self.commit(repository), "siblings": []}
            )
            self._answer(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _tree(self, folder: Path) -> list[dict[str, Any]]:
        listed = []
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            content, sha256 = self._content(path)
            entry: dict[str, Any] = {
                "type": "file",
                "path": path.relative_to(folder).as_posix(),
                "size": len(content),
                "oid": hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest(),
            }
            if len(content) >= LFS_FROM:
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            listed.append(entry)
        return listed

    def _search(self, request: BaseHTTPRequestHandler) -> None:
        self.requests["search"] += 1
        if self.faults.api_status:
            self._answer(request, self.faults.api_status, b'{"error":"fault"}', self._retry_headers())
            return
        text = parse_qs(urlsplit(request.path).query).get("search", [""])[0]
        names = sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("*/*"))
        found = [
            {"id": name, "downloads": 7, "usedStorage": 1000} for name in names if text in name and "@" not in name
        ]
        self._answer(request, 200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _upload(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        """What a push needs: make a repository, say how files travel, take large ones, commit."""
        answer: dict[str, Any] = {}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            (self.root / name).mkdir(parents=True, exist_ok=True)
            answer = {"url": f"{self.url}/{name}"}
        elif "/preupload/" in path:
            answer["files"] = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["size"] >= LFS_FROM else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
        elif path.endswith("/objects/batch"):
            answer["objects"] = [
                {**item, "actions": {"upload": {"href": f"{self.url}/uploads/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ]
        elif path.startswith("/uploads/"):
            self.uploads[path.rpartition("/")[2]] = body
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(self.root / found[1], [json.loads(entry) for entry in body.splitlines()])
            answer = {"commitUrl": f"{self.url}/{found[1]}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True}
        self._answer(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _commit(self, folder: Path, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            value = entry["value"]
            if entry["key"] == "file":
                content = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                content = self.uploads[value["oid"]]
            else:
                continue
            (folder / value["path"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / value["path"]).write_bytes(content)

    def _resolve(self, request: BaseHTTPRequestHandler, repository: str, name: str, on_cdn: bool) -> None:
        path = self.root / repository / name
        if not path.is_file():
            self._answer(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content, etag = self._content(path)
        large = len(content) >= LFS_FROM
        if large and not on_cdn:
            headers = {"Location": self.cdn_url + request.path, "X-Linked-Etag": f'"{etag}"',
                       "X-Linked-Size": str(len(content)), "X-Repo-Commit": self.commit(repository)}  # fmt: skip
            self._answer(request, 302, b"", headers)
            return
        if request.command == "GET":
            self.requests[name] += 1
            if on_cdn and self.faults.expired and request.headers.get("Range"):
                self.faults.expired -= 1
                self._answer(request, 403, b"")
                return
            if self.faults.file_status:
                self._answer(request, self.faults.file_status.pop(0), b"", self._retry_headers())
                return
        self._send_file(request, name, content, etag, self.commit(repository))

    def _send_file(self, request: BaseHTTPRequestHandler, name: str, content: bytes, etag: str, commit: str) -> None:
        start, end, large = 0, len(content), len(content) >= LFS_FROM
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if self.faults.no_range:
            asked = None
        if asked:
            start, end = int(asked[1]), min(int(asked[2] or end) + 1, end)
        if self.faults.flip_byte if large else self.faults.flip_small:
            content = content[:-1] + bytes([content[-1] ^ 1])
        body = memoryview(content)[start:end]
        request.send_response(206 if asked else 200)
        request.send_header("ETag", f'"{etag}"')
        request.send_header("X-Repo-Commit", commit)
        request.send_header("Content-Length", str(len(body)))
        if asked:
            request.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        request.end_headers()
        if request.command == "HEAD":
            return
        limit = self.faults.drop_after.pop(0) if large and self.faults.drop_after else len(body)
        step = max(1, int(self.faults.bytes_per_s / 20)) if self.faults.bytes_per_s else 1 << 16
        with self._counting:
            self.sending += large
            self.most_at_once = max(self.most_at_once, self.sending)
        try:
            for position in range(0, min(limit, len(body)), step):
                part = body[position : min(position + step, limit)]
                request.wfile.write(part)
                with self._counting:
                    self.sent[name] += len(part)
                if self.faults.bytes_per_s:
                    time.sleep(0.05)
        except OSError:
            request.close_connection = True
        finally:
            with self._counting:
                self.sending -= large
        if limit < len(body):
            request.close_connection = True

    def _retry_headers(self) -> dict[str, str]:
        headers = {"Retry-After": self.faults.retry_after, "X-Error-Message": self.faults.message}
        return {name: value for name, value in headers.items() if value}

    def _answer(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts = []
    while size := int(request.rfile.readline().strip() or b"0", 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)
