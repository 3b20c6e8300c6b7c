"""Which origins, hosts, paths and methods get past the guards."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.server.guards import HostCheck, OriginCheck, RouteCheck
from omlx.server.guards.guard import Guard, RequestHead, Verdict
from omlx.server.hosts import Hosts
from omlx.server.origins import OriginError, Origins
from omlx.server.route_info import RouteInfo, RouteTable
from tests.server.local import LocalServer
from tests.support.server import ServerProcess

ROUTES = RouteTable({
    "/": RouteInfo(("GET", "HEAD"), "omlx"),
    "/api/tags": RouteInfo(("GET", "HEAD"), "ollama"),
    "/api/chat": RouteInfo(("POST",), "ollama"),
    "/api/blobs/{digest}": RouteInfo(("HEAD", "POST"), "ollama"),
})  # fmt: skip
HOST = "127.0.0.1:11434"


def judge(
    method: str,
    path: str,
    *,
    host: str = HOST,
    origin: str | None = None,
    query: str = "",
    origins: tuple[str, ...] = (),
    bound_to: str = "127.0.0.1",
) -> Verdict:
    """What the guards together make of a request: the first that answers it, with the headers of those before."""
    fields = {b"host": host, **({b"origin": origin} if origin is not None else {})}
    head = RequestHead(method, path, query, fields)
    headers: tuple[tuple[str, str], ...] = ()
    guards: list[Guard] = [
        OriginCheck(_nothing, Origins(origins)),
        HostCheck(_nothing, Hosts(bound_to)),
        RouteCheck(_nothing, ROUTES),
    ]
    for guard in guards:
        verdict = guard.judge(head)
        headers = (*headers, *verdict.headers)
        if verdict.status:
            return verdict._replace(headers=headers)
    return Verdict(headers=headers)


async def _nothing(*_: Any) -> None: ...


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "https://localhost:3000", "http://127.0.0.1:8080", "http://0.0.0.0", "app://obsidian.md",
     "file://", "tauri://localhost", "vscode-webview://1ab", "vscode-file://vscode-app", "HTTP://LOCALHOST:1"],
)  # fmt: skip
def test_built_in_origins_are_allowed_and_echoed(origin: str) -> None:
    verdict = judge("GET", "/api/tags", origin=origin)
    assert verdict.status == 0
    assert dict(verdict.headers) == {"access-control-allow-origin": origin, "vary": "Origin"}


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://localhost.evil.example", "null", "", "ftp://localhost"]
)
def test_foreign_origins_are_refused_without_a_word(origin: str) -> None:
    for method, path in (("GET", "/api/tags"), ("OPTIONS", "/api/tags"), ("GET", "/nowhere")):
        assert judge(method, path, origin=origin) == Verdict(403)


def test_the_same_origin_gets_no_cors_headers() -> None:
    assert judge("GET", "/", host="box.local", origin="http://box.local") == Verdict()


def test_a_preflight_names_what_is_allowed() -> None:
    verdict = judge("OPTIONS", "/api/chat", origin="http://localhost:5173")
    assert verdict.status == 204
    headers = dict(verdict.headers)
    assert headers["access-control-allow-methods"] == "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
    assert headers["access-control-max-age"] == "43200"
    allowed = {name.lower() for name in headers["access-control-allow-headers"].split(",")}
    assert allowed >= {
        "authorization", "content-type", "x-stainless-poll-helper", "x-api-key", "anthropic-version", "anthropic-beta",
        "anthropic-dangerous-direct-browser-access", "x-request-id", "x-omlx-priority", "x-omlx-deadline",
        "x-omlx-num-ctx",
    }  # fmt: skip
    assert [value for name, value in verdict.headers if name == "vary"] == [
        "Origin",
        "Access-Control-Request-Method",
        "Access-Control-Request-Headers",
    ]


def test_further_origins_may_be_set() -> None:
    own = ("https://chat.example", "https://*.corp.example", "chrome-extension://*", r"/^https://x\d+\.test$/")
    for origin in ("https://chat.example", "https://a.corp.example", "chrome-extension://abc", "https://x12.test"):
        assert judge("GET", "/", origin=origin, origins=own).status == 0
    for origin in ("https://chat.example.evil", "https://corp.example", "https://xx.test"):
        assert judge("GET", "/", origin=origin, origins=own).status == 403


def test_a_star_lets_everyone_in() -> None:
    verdict = judge("GET", "/", origin="http://any.example", origins=("*",))
    assert verdict.headers == (("access-control-allow-origin", "*"),)


@pytest.mark.parametrize("entry", ["chat.example", "ftp://x", "http://*.x.*", "/(/"])
def test_an_origin_that_means_nothing_is_named(entry: str) -> None:
    with pytest.raises(OriginError) as caught:
        Origins([entry])
    assert f'"{entry}"' in str(caught.value)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:1", "127.0.0.1:11434", "127.8.9.1", "192.168.1.5:80", "10.0.0.1", "[::1]:11434", "0.0.0.0",
     "", "my.localhost", "box.local:11434", "x.internal", socket.gethostname()],
)  # fmt: skip
def test_local_hosts_are_answered(host: str) -> None:
    assert judge("GET", "/", host=host).status == 0


@pytest.mark.parametrize("host", ["evil.example", "evil.example:11434", "8.8.8.8", "localhost.evil.example", "local"])
def test_foreign_hosts_are_refused(host: str) -> None:
    assert judge("GET", "/", host=host) == Verdict(403)


@pytest.mark.parametrize("bound_to", ["0.0.0.0", "::", "192.168.1.5"])
def test_a_server_on_the_network_answers_every_host(bound_to: str) -> None:
    assert judge("GET", "/", host="evil.example", bound_to=bound_to).status == 0


def test_unknown_paths_and_methods_are_answered_as_gos_router_does() -> None:
    assert judge("GET", "/api/nothing") == Verdict(404, (), "404 page not found")
    assert judge("GET", "/API/tags").status == 404
    assert judge("GET", "//api/tags").status == 404
    assert judge("POST", "/api/blobs/a/b").status == 404
    assert judge("PUT", "/api/tags") == Verdict(405, (("allow", "GET, HEAD"),), "405 method not allowed")
    assert judge("GET", "/api/blobs/sha256:x") == Verdict(405, (("allow", "HEAD, POST"),), "405 method not allowed")


def test_a_trailing_slash_is_redirected_for_the_methods_that_exist() -> None:
    assert judge("GET", "/api/tags/", query="a=1") == Verdict(301, (("location", "/api/tags?a=1"),))
    assert judge("HEAD", "/api/tags/").status == 307
    assert judge("POST", "/api/chat/") == Verdict(307, (("location", "/api/chat"),))
    assert judge("GET", "/api/chat/").status == 404
    assert judge("GET", "/api/tags//").status == 404


def test_options_without_origin_is_answered_by_name_only() -> None:
    assert judge("OPTIONS", "/api/tags", host="localhost:11434").status == 204
    assert judge("OPTIONS", "/api/tags").status == 405
    assert judge("OPTIONS", "/api/tags", host="localhost", bound_to="0.0.0.0").status == 405


@pytest.mark.parametrize("name", ["127.1", "2130706433", "localhost", "127.0.0.2", "::1"])
def test_loopback_by_another_name_is_loopback(tmp_path: Path, name: str) -> None:
    """The address of the socket decides, and the name that was given to it is one of the server's."""
    host = f"[{name}]" if ":" in name else name
    with socket.create_server((name, 0), family=socket.AF_INET6 if ":" in name else socket.AF_INET) as probe:
        port = probe.getsockname()[1]
    server = ServerProcess(tmp_path, env={"OMLX_HOST": f"http://{host}:{port}"})
    server.url = f"http://{host}:{port}"
    with server:
        statuses = {
            sent: httpx.get(f"{server.url}/api/tags", headers={"host": sent}, trust_env=False).status_code
            for sent in (f"{host}:{port}", "localhost", "evil.example", f"evil.example:{port}")
        }
        assert list(statuses.values()) == [200, 200, 403, 403]
        assert "everybody who reaches" not in server.log_text()


@pytest.mark.parametrize("second", ["localhost", "evil.example"])
def test_two_host_headers_are_one_too_many(scripted: LocalServer, second: str) -> None:
    host, port = scripted.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        lines = ["GET /api/tags HTTP/1.1", "Host: localhost", f"Host: {second}", "Connection: close"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 400 ") and reply.endswith(b"\r\n\r\n400 Bad Request: too many Host headers")
