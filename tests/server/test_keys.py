"""Where keys are set, nothing but the greeting answers without one; where none is, nothing is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from omlx.server import keys as keys_module
from omlx.server.keys import Key, Keys, keys_of, warning
from omlx.settings import SettingError, Settings, load
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


def test_no_auth_switches_keys_off(tmp_path: Path) -> None:
    settings = Settings(api_key=["a"], api_key_file=str(tmp_path / "absent"), no_auth=True)
    assert keys_of(settings).admit("", "").known
    assert not keys_of(Settings(api_key=["a"])).admit("", "").known


def test_a_file_gives_keys_names_and_rates_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who may call\n\nada  sk-ada\n  ci\tsk-#ci 2\n", "utf-8")
    keys = keys_of(Settings(api_key=["alone"], api_key_file=str(file), key_rate_limit=60))
    assert [keys.admit("", secret).name for secret in ("alone", "sk-ada", "sk-#ci")] == [
        "key-1", "ada", "ci"]  # fmt: skip
    assert not keys.admit("", "ada").known


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ada", "line 1"),
        ("# x\nada secret-word often", "line 2"),
        ("ada secret-word 5 6", "line 1"),
        ("ada secret-word\nada secret-word", "line 2"),
        ("# nothing\n", "holds no key"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start_and_shows_no_key(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text, "utf-8")
    with pytest.raises(SettingError) as error:
        keys_of(Settings(api_key_file=str(file)))
    assert complaint in str(error.value)
    assert "secret-word" not in str(error.value)


def test_a_keys_rate_is_its_own_and_fills_up_again() -> None:
    now = 0.0
    keys = Keys([Key("slow", "s", 2), Key("free", "f")], clock=lambda: now)

    def wait(secret: str) -> int:
        return keys.admit("", secret).retry_after

    assert [wait("s") for _ in range(3)] == [0, 0, 30]
    assert [wait("f") for _ in range(3)] == [0, 0, 0]
    now = 29.5
    assert wait("s") == 1
    now = 30.0
    assert [wait("s"), wait("s")] == [0, 30]
    now = 1000.0
    assert [wait("s") for _ in range(3)] == [0, 0, 30]


def test_a_key_used_too_often_is_told_in_each_dialect_when_to_come_back(tmp_path: Path) -> None:
    settings = Settings(models=str(tmp_path), spare_runner=False, api_key=["k"], key_rate_limit=1)
    with LocalServer(stocked(tmp_path), settings, SCRIPTED) as server, server.client() as http:
        headers = {"x-api-key": "k"}
        assert http.get("/api/tags", headers=headers).status_code == 200
        replies = {path: http.get(path, headers=headers) for path in ("/api/tags", "/v1/models", "/v1/messages")}
        assert {reply.status_code for reply in replies.values()} == {429}
        assert {0 < int(reply.headers["retry-after"]) <= 60 for reply in replies.values()} == {True}
        message = "this API key has used up its requests for now"
        assert replies["/api/tags"].json() == {"error": message}
        assert replies["/v1/models"].json()["error"] == {
            "message": message, "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}  # fmt: skip
        assert replies["/v1/messages"].json()["error"] == {"type": "rate_limit_error", "message": message}
        with pytest.raises(openai.RateLimitError):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0).models.list()


@pytest.mark.parametrize(
    ("settings", "address", "warns"),
    [
        (Settings(), "127.0.0.1", False),
        (Settings(), "::1", False),
        (Settings(), "::ffff:127.0.0.1", False),
        (Settings(), "0.0.0.0", True),
        (Settings(), "::", True),
        (Settings(host="http://127.0.0.1:1"), "192.168.1.5", True),
        (Settings(api_key=["a"]), "0.0.0.0", False),
        (Settings(api_key_file="/keys"), "0.0.0.0", False),
        (Settings(no_auth=True), "0.0.0.0", False),
    ],
)
def test_a_server_that_anybody_could_use_says_so(settings: Settings, address: str, warns: bool) -> None:
    assert ("no_auth" in warning(settings, address)) is warns


def test_keys_come_from_the_variable_and_never_leave_in_an_error(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    assert load({}, {"OMLX_API_KEY": "a, b"}, absent).settings.api_key == ["a", "b"]


def test_every_key_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal takes no less time than an admission, and none tells which key was near."""
    compared: list[tuple[int, int]] = []
    real = keys_module.hmac.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return real(left, right)

    monkeypatch.setattr(keys_module.hmac, "compare_digest", counting)
    keys = Keys([Key(name, f"sk-{name}-{'x' * at}") for at, name in enumerate(("ada", "bob", "eve"))])
    seen = []
    for shown in ("sk-ada-", "sk-eve-xx", "sk-eve-", "", "s" * 4000):
        compared.clear()
        keys.admit(f"Bearer {shown}", "")
        seen.append(list(compared))
    assert seen == [[(32, 32)] * 3, [(32, 32)] * 3, [(32, 32)] * 3, [], [(32, 32)] * 3]
