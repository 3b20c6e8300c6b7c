"""Open WebUI on oMLX, in a browser: what people do there works, with the settings that contrib/open-webui recommends.

Open WebUI, the browser and the server are real, the models tiny; only the one that calls a tool is scripted, since no
tiny model reads tool descriptions. `make test-openwebui` installs and runs it; it takes minutes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from omlx.settings import Settings
from tests.browser.openwebui import PROGRAM, OpenWebUi
from tests.cli.conftest import make_model
from tests.clients.agent_runner import wish
from tests.server.local import LocalServer, eventually, stocked
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_MS = 120_000
SECRET = "The password of the lighthouse is marzipan."
WEATHER = '''
class Tools:
    def get_weather(self, city: str) -> str:
        """
        The weather of a city.
        :param city: its name
        """
        return f"21 degrees in {city}"
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The real server; it logs prompts, so that a test can see what reached the model."""
    from tests.support.tiny_encoder import make_encoder
    from tests.support.tiny_vlm import tiny_vlm

    if not PROGRAM.exists():
        pytest.skip("Open WebUI is not installed: run `make test-openwebui`")
    folder = tmp_path_factory.mktemp("openwebui-server")
    env = {"OMLX_SPARE_RUNNER": "false", "OMLX_LOG_PROMPTS": "true"}
    with ServerProcess(folder, env=env) as running:
        make_model("tiny", tiny_model("llama", taught=True), folder, running.url)
        make_model("sight", tiny_vlm("qwen2_5_vl"), folder, running.url, "PARAMETER num_predict 16")
        make_model("letters", make_encoder(folder / "encoder", "bert"), folder, running.url)
        yield running


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server whose models call the tool that they are told to."""
    root = tmp_path_factory.mktemp("openwebui-caller")
    command = (sys.executable, "-m", "tests.clients.agent_runner")
    with LocalServer(stocked(root), Settings(models=str(root), spare_runner=False), command) as running:
        yield running


@pytest.fixture(scope="module")
def webui(server: ServerProcess, caller: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenWebUi]:
    with OpenWebUi(tmp_path_factory.mktemp("openwebui"), [server.url, caller.url], embedder="letters") as running:
        yield running


@pytest.fixture
def page(browser: Any, webui: OpenWebUi) -> Iterator[Any]:
    """A new chat. It must ask nobody but its server."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    elsewhere: list[str] = []
    opened.on("request", lambda asked: None if asked.url.startswith((webui.url, "data:", "blob:"))
              else elsewhere.append(asked.url))  # fmt: skip
    # What is new in Open WebUI, which it shows at the first visit.
    opened.add_locator_handler(
        opened.get_by_role("button", name="Okay, Let's Go!"),
        lambda: opened.get_by_role("button", name="Okay, Let's Go!").click(),
    )
    opened.goto(webui.url)
    opened.locator("#chat-input").wait_for()
    yield opened
    context.close()
    assert elsewhere == []


def choose(page: Any, model: str) -> None:
    page.locator("#model-selector-model-button").click()
    page.locator(f'button[aria-label="Select {model} model"]').click()
    page.locator(f'#model-selector-model-button[aria-label="Selected model: {model}"]').wait_for()


def say(page: Any, text: str) -> None:
    page.locator("#chat-input").click()
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")


def answer(page: Any) -> Any:
    return page.locator(".chat-assistant").last


def asked(server: ServerProcess, route: str) -> list[dict[str, Any]]:
    """What the server was asked on a route, the newest first."""
    rows = httpx.get(f"{server.url}/api/omlx/requests", trust_env=False, timeout=20).json()["requests"]
    return [row for row in rows if row["route"] == route]


def attach(page: Any, path: Path) -> None:
    page.locator("#input-menu-button").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Upload Files").click()
    chooser.value.set_files(path)


def test_models_are_listed_and_a_chat_streams_word_for_word(page: Any, server: ServerProcess) -> None:
    page.locator("#model-selector-model-button").click()
    for model in ("tiny", "sight", "letters", "thinker"):
        page.locator(f'button[aria-label="Select {model}:latest model"]').wait_for()
    page.keyboard.press("Escape")
    choose(page, "tiny:latest")
    say(page, "Hello")
    answer(page).get_by_text("Hello! How can I help you today?").wait_for()
    assert 'prompt: [{"role": "user", "content": "Hello"}]' in server.log_text(), (
        "nothing of Open WebUI's own came with it"
    )


def test_a_model_is_pulled_from_the_settings_and_its_answer_stopped(
    page: Any, server: ServerProcess, webui: OpenWebUi
) -> None:
    page.goto(f"{webui.url}/admin/settings/connections")
    page.locator("button[aria-label=Manage]").first.click()
    tag = page.get_by_placeholder("Enter model tag (e.g. mistral:7b)")
    tag.fill("smollm2")
    tag.locator("xpath=../..").get_by_role("button").last.click()
    page.get_by_text(re.compile("smollm2.*successfully", re.DOTALL)).first.wait_for()
    assert "smollm2:latest" in httpx.get(f"{server.url}/api/tags", trust_env=False).text

    page.goto(webui.url)
    choose(page, "smollm2:latest")
    say(page, "Write a very long story about a mountain.")
    answer(page).get_by_text(re.compile(r"\w+ \w+ \w+")).first.wait_for()
    page.locator("button[aria-label=Stop]").click()
    page.locator("button[aria-label=Stop]").wait_for(state="detached")
    assert eventually(lambda: asked(server, "/api/chat")[0]["stage"] not in {"prefill", "decode"}, 20)
    assert len(answer(page).inner_text()) > 5, "what came before stays"
    say(page, "Say yes.")
    page.locator(".chat-assistant").nth(1).get_by_text(re.compile(r"\w")).first.wait_for()


def test_a_model_is_unloaded_by_its_eject_button(page: Any, server: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "", "keep_alive": 600}
    httpx.post(f"{server.url}/api/generate", json=body, trust_env=False, timeout=60).raise_for_status()
    page.reload()
    page.locator("#model-selector-model-button").click()
    row = page.get_by_role("option", name="Select tiny:latest model")
    row.get_by_role("button", name="Eject model").click()

    def loaded() -> list[str]:
        found = httpx.get(f"{server.url}/api/ps", trust_env=False, timeout=20).json()["models"]
        return [model["name"] for model in found]

    assert eventually(lambda: "tiny:latest" not in loaded(), 30)


def test_an_image_reaches_a_model_that_sees(page: Any, server: ServerProcess, tmp_path: Path) -> None:
    picture = tmp_path / "red.png"
    Image.new("RGB", (56, 56), (220, 40, 40)).save(picture)
    choose(page, "sight:latest")
    attach(page, picture)
    page.locator("form img, #message-input-container img").first.wait_for()
    say(page, "What is this?")
    assert eventually(lambda: any(row["model"].startswith("sight") and row["status"] == 200 and row["completion_tokens"]
                                  for row in asked(server, "/api/chat")), 60)  # fmt: skip
    assert page.locator(".chat-user img, .user-message img").count() >= 1


def test_a_document_is_found_by_our_embeddings(page: Any, server: ServerProcess, tmp_path: Path) -> None:
    document = tmp_path / "lighthouse.txt"
    document.write_text(SECRET + "\n")
    choose(page, "tiny:latest")
    attach(page, document)
    page.get_by_text("lighthouse.txt").first.wait_for()
    assert eventually(lambda: bool(asked(server, "/api/embed")), 90), "the document"
    before = len(asked(server, "/api/embed"))
    say(page, "What is the password?")
    assert eventually(lambda: len(asked(server, "/api/embed")) > before, 90), "the question"
    assert eventually(lambda: SECRET in server.log_text(), 90), "the model was shown the passage"
    assert {row["status"] for row in asked(server, "/api/embed")} == {200}


def test_a_tool_is_called_and_its_answer_read(page: Any, webui: OpenWebUi) -> None:
    token = page.evaluate("localStorage.token")
    with httpx.Client(base_url=f"{webui.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60,
                      trust_env=False) as http:  # fmt: skip
        tool = {"id": "weather", "name": "Weather", "content": WEATHER, "meta": {"description": "the weather"}}
        http.post("/tools/create", json=tool).raise_for_status()
        model = {"id": "thinker:latest", "name": "thinker:latest", "base_model_id": None, "params": {},
                 "meta": {"toolIds": ["weather"]}}  # fmt: skip
        http.post("/models/create", json=model).raise_for_status()
    page.reload()
    choose(page, "thinker:latest")
    say(page, wish("get_weather", city="Paris"))
    answer(page).get_by_text("21 degrees in Paris").first.wait_for()
