"""Video files over HTTP: a file is the frames in it, and hostile ones get a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.chat import content, text_of
from tests.support.films import film
from tests.support.tiny import DATA
from tests.support.tiny_vlm import as_file, draw, tiny_vlm

FRAMES = [draw("red", "circle", side=112, seed=number) for number in range(12)]
FILM = film(FRAMES, codec="libx264rgb", fps=4)
"""Three seconds."""


@pytest.fixture(scope="module")
def http_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("films")
    registry = Registry(root / "models", [])
    for name, kind in (("eyes", "qwen3_vl"), ("small", "smolvlm"), ("gemma", "gemma3")):
        registry.add_model_folder(name, tiny_vlm(kind), transfer="copy")
    registry.add_model_folder("blind", DATA / "taught-llama", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server, server.client() as client:
        yield client


def chat(client: httpx.Client, *files: bytes, model: str = "eyes", **video: Any) -> httpx.Response:
    message = {"role": "user", "content": "What is it?", "videos": [{"frames": [*map(text_of, files)], **video}]}
    options = {"temperature": 0, "num_predict": 8}
    return client.post("/api/chat", json={"model": model, "stream": False, "options": options, "messages": [message]})


def test_a_file_is_the_frames_in_it(http_client: httpx.Client) -> None:
    expected = content(chat(http_client, *(as_file(frame) for frame in FRAMES[::2]), fps=2))
    assert content(chat(http_client, FILM)) == expected
    assert content(chat(http_client, film(FRAMES, "matroska", "libx264rgb", fps=4), fps=2)) == expected
    thinned = content(chat(http_client, *(as_file(frame) for frame in FRAMES[::3]), fps=4 / 3))
    assert content(chat(http_client, FILM, fps=4, max_frames=4)) == thinned != expected
    assert content(chat(http_client, film(FRAMES, "webm", "libvpx-vp9", fps=4)))
    url = {"url": f"data:video/mp4;base64,{text_of(FILM)}"}
    parts = [{"type": "video_url", "video_url": url}, {"type": "text", "text": "What is it?"}]
    body = {"model": "eyes", "messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    answer = http_client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == expected


def test_smolvlm_takes_files_too(http_client: httpx.Client) -> None:
    frames = [as_file(frame) for frame in FRAMES]
    expected = content(chat(http_client, *frames[::4], fps=1, model="small"))
    assert content(chat(http_client, FILM, fps=1, model="small")) == expected
    assert content(chat(http_client, *frames[::-4], fps=1, model="small")) != expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (FILM[:500], "damaged or cut off"),
        (FILM[:-200], "damaged or cut off"),
        (b"%PDF-1.7 and more", "no MP4"),
        (b"\x1aE\xdf\xa3" + bytes(99), "damaged or cut off"),
    ],
)
def test_hostile_files_get_a_sentence_and_harm_nobody(http_client: httpx.Client, data: bytes, says: str) -> None:
    expected = content(chat(http_client, FILM))
    with ThreadPoolExecutor(4) as helpers:
        bad = [helpers.submit(chat, http_client, data) for _ in range(3)]
        assert content(helpers.submit(chat, http_client, FILM).result()) == expected
    for answer in (waiting.result() for waiting in bad):
        error = answer.json()["error"]
        assert answer.status_code == 400 and says in error, error
        assert len(error) < 200 and "Traceback" not in error and "0x" not in error


def test_a_file_is_no_image_and_not_every_model_takes_one(http_client: httpx.Client) -> None:
    for model in ("gemma", "blind"):
        answer = chat(http_client, FILM, model=model)
        assert (answer.status_code, answer.json()) == (400, {"error": "this model does not support video input"})
    message = {"role": "user", "content": "What is it?", "images": [text_of(FILM)]}
    answer = http_client.post("/api/chat", json={"model": "eyes", "messages": [message]})
    assert answer.status_code == 400 and "videos" in answer.json()["error"]
