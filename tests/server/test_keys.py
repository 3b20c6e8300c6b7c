"""Where keys are set, nothing but the greeting answers without one; where none is, nothing is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from omlx.server.keys import Keys, keys_of, warning
from omlx.settings import Settings, load
from tests.server.local import SCRIPTED, LocalServer, stocked


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("guarded")
    settings = Settings(models=str(root), spare_runner=False, api_key=["first", "sécond"])
    with LocalServer(stocked(root), settings, SCRIPTED) as server:
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Basic first"},
        {"authorization": "first"},
        {"x-api-key": "firs"},
        {"x-api-key": "?????"},
        {"x-api-key": ""},
    ],
)
def test_every_route_but_the_greeting_wants_a_key(guarded: LocalServer, headers: dict[str, str]) -> None:
    with guarded.client() as http:
        for path in ("/", "/health", "/api/version"):
            assert http.get(path, headers=headers).status_code == 200
        for method, path in (("GET", "/api/tags"), ("GET", "/ready"), ("POST", "/api/chat"), ("GET", "/v1/models"),
                             ("POST", "/v1/messages"), ("DELETE", "/api/delete"), ("GET", "/nowhere")):  # fmt: skip
            response = http.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert "a valid API key is required" in response.text


def test_a_refusal_speaks_the_dialect_of_its_path(guarded: LocalServer) -> None:
    with guarded.client() as http:
        assert http.get("/api/tags").json() == {"error": "a valid API key is required"}
        assert http.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
        assert http.post("/v1/messages").json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer first"}, {"authorization": "bearer  first"}, {"x-api-key": "first"},
     {"x-api-key": "sécond".encode()}, {"authorization": "Bearer dummy", "x-api-key": "first"}],
)  # fmt: skip
def test_either_header_and_any_key_will_do(guarded: LocalServer, headers: dict[str, str]) -> None:
    with guarded.client() as http:
        assert http.get("/api/tags", headers=headers).status_code == 200


def test_the_clients_own_packages_send_their_key(guarded: LocalServer) -> None:
    def chat(key: str) -> str | None:
        client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0)
        reply = client.chat.completions.create(model="plain", messages=[{"role": "user", "content": "say Hi"}])
        return reply.choices[0].message.content

    def message(key: str) -> int:
        client = anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0)
        reply = client.messages.create(model="plain", max_tokens=5, messages=[{"role": "user", "content": "say Hi"}])
        return reply.usage.output_tokens

    assert (chat("first"), message("first")) == ("Hi", 3)
    with pytest.raises(openai.AuthenticationError):
        chat("wrong")
    with pytest.raises(anthropic.AuthenticationError):
        message("wrong")


def test_without_keys_any_key_is_welcome(http: httpx.Client) -> None:
    assert http.get("/api/tags", headers={"authorization": "Bearer anything"}).status_code == 200


def test_no_auth_switches_keys_off() -> None:
    settings = Settings(api_key=["a"], no_auth=True)
    assert keys_of(settings).allow("/api/tags", "", "")
    assert not Keys(["a"]).allow("/api/tags", "", "")


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        (Settings(), False),
        (Settings(host="http://[::1]:1"), False),
        (Settings(host="http://localhost:1"), False),
        (Settings(host="http://0.0.0.0:1"), True),
        (Settings(host="http://192.168.1.5:1"), True),
        (Settings(host="http://0.0.0.0:1", api_key=["a"]), False),
        (Settings(host="http://0.0.0.0:1", no_auth=True), False),
    ],
)
def test_a_server_that_anybody_could_use_says_so(settings: Settings, warns: bool) -> None:
    assert ("no_auth" in warning(settings)) is warns


def test_keys_come_from_the_variable_and_never_leave_in_an_error(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    assert load({}, {"OMLX_API_KEY": "a, b"}, absent).settings.api_key == ["a", "b"]
