"""Transcriptions through the whole stack, with a tiny Whisper and the client that people use."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
import psutil
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer, eventually
from tests.support.bystanders import machine_factor
from tests.support.processes import command_line
from tests.support.tiny import DATA
from tests.support.tiny_whisper import as_wav, make_whisper, sound

SHORT = as_wav(sound(3))
LONG = as_wav(sound(65))
ENCODED = base64.b64encode(SHORT).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("speech")
    registry = Registry(root / "models", [])
    registry.add_model_folder("whisper", make_whisper(root / "whisper"), transfer="copy")
    registry.add_model_folder("chat", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(
        models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False, max_body=20_000_000
    )
    with LocalServer(registry, settings) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: LocalServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def text(client: openai.OpenAI) -> str:
    """What the model hears in the long file."""
    return client.audio.transcriptions.create(model="whisper", file=("long.wav", LONG)).text


def post(http: httpx.Client, audio: bytes = SHORT, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    return http.post(f"/v1/audio/{path}", files={"file": ("a.wav", audio)}, data={"model": "whisper", **fields})


def test_a_speech_model_says_what_it_is(http: httpx.Client) -> None:
    shown = http.post("/api/show", json={"model": "whisper"}).json()
    assert shown["capabilities"] == ["transcription", "audio"]
    assert shown["details"]["family"] == "whisper"
    tags = {it["name"]: it for it in http.get("/api/tags").json()["models"]}
    assert tags["whisper:latest"]["details"]["family"] == "whisper"


def test_the_client_gets_the_text_whole_and_in_pieces(client: openai.OpenAI, text: str) -> None:
    assert len(text.split()) > 10 and text == text.strip()
    stream = client.audio.transcriptions.create(model="whisper", file=("long.wav", LONG), stream=True)
    events = list(stream)
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert len(events) > 2, "each window is told as it is written down"
    assert events[-1].type == "transcript.text.done"
    deltas = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    assert deltas == events[-1].text == text
    assert events[-1].usage.model_dump()["seconds"] == 65


def test_times_of_segments_and_words(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        model="whisper",
        file=("long.wav", LONG),
        language="German",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert (found.language, found.duration) == ("german", 65.0)
    assert found.segments and found.words
    assert [segment.id for segment in found.segments] == list(range(len(found.segments)))
    assert all(0 <= word.start <= word.end <= 66 for word in found.words)
    assert all(word.word for word in found.words)
    only = client.audio.transcriptions.create(
        model="whisper", file=("s.wav", SHORT), response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert only.segments and only.words is None


def test_the_other_formats(http: httpx.Client, client: openai.OpenAI, text: str) -> None:
    plain = post(http, LONG, response_format="text")
    assert (plain.text, plain.headers["content-type"]) == (text + "\n", "text/plain; charset=utf-8")
    srt = client.audio.transcriptions.create(model="whisper", file=("l.wav", LONG), response_format="srt")
    first, *_ = srt.split("\n\n")
    assert re.fullmatch(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n[^\n]+", first)
    vtt = post(http, response_format="vtt").text
    assert re.match(r"WEBVTT\n\n00:00:\d\d\.\d{3} --> 00:00:\d\d\.\d{3}\n[^\n]+\n\n", vtt)
    english = client.audio.translations.create(model="whisper", file=("s.wav", SHORT))
    assert english.text


def test_progress_is_told_to_who_asks(http: httpx.Client) -> None:
    lines = post(http, LONG, stream="true", progress="true", response_format="verbose_json").text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    steps = [event["done"] for event in events if event["type"] == "omlx.progress"]
    assert steps == sorted(steps) and steps[-1] == 65.0 and len(steps) > 1
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["segments"] and events[-1]["duration"] == 65.0


@pytest.mark.parametrize(
    ("fields", "audio", "sentence"),
    [
        ({"model": ""}, SHORT, "model is required"),
        ({"model": "chat"}, SHORT, '"chat" does not support transcription: use a speech model such as whisper'),
        ({"response_format": "diarized_json"}, SHORT, "response_format 'diarized_json' is not supported"),
        ({"timestamp_granularities[]": "word"}, SHORT, "timestamp_granularities needs response_format verbose_json"),
        ({"temperature": "2"}, SHORT, "temperature must be a number from 0 to 1"),
        ({"stream": "true", "response_format": "srt"}, SHORT, "response_format srt cannot be streamed"),
        ({"stream": "maybe"}, SHORT, "stream must be true or false"),
        ({"language": "klingon"}, SHORT, "this model does not support the language 'klingon'"),
        ({}, b"", "audio file is empty"),
        ({}, b"GIF89a" + bytes(100), "the file is not audio in a supported format"),
        ({}, SHORT[:20], "the file is not audio in a supported format"),
        ({}, b"RIFF\xff\xff\xff\xffWAVEfmt " + bytes(64), "the file is not audio in a supported format"),
        ({"stream": "true"}, b"nonsense", "the file is not audio in a supported format"),
    ],
)
def test_what_is_wrong_is_said_in_openais_envelope(
    http: httpx.Client, fields: dict[str, str], audio: bytes, sentence: str
) -> None:
    answer = post(http, audio, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"].startswith(sentence) and error["type"] == "invalid_request_error"


def test_other_mistakes_of_the_request(http: httpx.Client) -> None:
    missing = post(http, model="nobody")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    for body in ({"json": {"model": "whisper"}}, {"data": {"model": "whisper"}}):
        answer = http.post("/v1/audio/transcriptions", **body)
        assert answer.status_code == 400
        assert "multipart/form-data" in answer.json()["error"]["message"]
    nothing = http.post("/v1/audio/transcriptions", files={"other": b"x"}, data={"model": "whisper"})
    assert nothing.json()["error"]["message"].startswith("file is required")
    cut = httpx.Request("POST", http.base_url, files={"file": SHORT}, data={"model": "whisper"})
    cut.read()
    answer = http.post(
        "/v1/audio/transcriptions", content=cut.content[:-300], headers={"content-type": cut.headers["content-type"]}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("failed to parse multipart form")
    large = post(http, bytes(21_000_000))
    assert large.status_code == 413


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/api/generate", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
        ("/api/embed", {"input": "Hi"}),
        ("/api/embeddings", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/rerank", {"query": "Hi", "documents": ["Hi"]}),
    ],
)
def test_a_speech_model_answers_nothing_else(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json={"model": "whisper", **body})
    assert answer.status_code == 400, answer.text
    assert "does not support" in answer.text, answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi", "images": [ENCODED]}]}),
        ("/api/generate", {"prompt": "Hi", "images": [ENCODED]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": ENCODED, "format": "wav"}}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": f"data:audio/wav;base64,{ENCODED}"}}]}]}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "audio/wav", "data": ENCODED}}]}]}),
    ],
)  # fmt: skip
def test_audio_in_a_chat_is_refused_as_what_it_is(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json={"model": "chat", **body})
    assert (answer.status_code, "this model does not support audio input" in answer.text) == (400, True), answer.text


def test_two_files_take_turns(client: openai.OpenAI, server: LocalServer, http: httpx.Client, text: str) -> None:
    """A short file does not wait for one that was begun before it, and each gets the text that it gets alone."""
    alone = post(http).json()["text"]
    with client.audio.transcriptions.create(model="whisper", file=("x.wav", as_wav(sound(500))), stream=True) as long:
        events = iter(long)
        assert next(events).type == "transcript.text.delta"
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(lambda audio: post(http, audio).json()["text"], (SHORT, LONG))
            assert list(found) == [alone, text]
        assert eventually(lambda: server.running() == 1), "the long one is still being written down"
        assert next(events).type == "transcript.text.delta"
    assert eventually(lambda: server.running() == 0)


@pytest.mark.slow
def test_a_short_file_does_not_wait_until_long_ones_are_decoded(http: httpx.Client, server: LocalServer) -> None:
    """Nor until there is memory for more of them: one of hours takes more than half of what they may have."""
    minute = encoded_mp3(60)
    hours = minute * 150  # MP3 files behind each other are one
    alone = post(http).json()["text"]

    def long() -> int:
        with http.stream(
            "POST", "/v1/audio/transcriptions", files={"file": hours}, data={"model": "whisper", "stream": "true"}
        ) as answer:
            lines = answer.iter_lines()  # to let go of it would end the connection
            next(filter(None, lines))
            begun.set()
            heard.wait()
        return answer.status_code

    begun, heard = threading.Event(), threading.Event()
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(long) for _ in range(2)]
        try:
            assert eventually(lambda: decoders() >= 2)
            for _ in range(5):
                asked = time.monotonic()
                assert post(http).json()["text"] == alone
                assert time.monotonic() - asked < 4.0 * machine_factor()
            assert begun.wait(300), "one of them is decoded"
            # The parts of the form that are no file, and its copy, are forgotten; a fast machine is done with it all.
            assert server.memory.size - server.memory.free <= 2 * len(hours)
            assert post(http).json()["text"] == alone
        finally:
            heard.set()
        assert [answer.result() for answer in answers] == [200] * 2


def decoders() -> int:
    """Processes that decode audio."""
    return sum("audio_decoder" in command_line(child) for child in psutil.Process().children(recursive=True))


def encoded_mp3(seconds: float) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp3") as file:
        stream = file.add_stream("libmp3lame", rate=8000, layout="mono")
        stream.bit_rate = 8000
        samples = (sound(seconds, rate=8000) * 32000).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def test_who_leaves_costs_nothing_more(server: LocalServer, http: httpx.Client, text: str) -> None:
    request = httpx.Request(
        "POST", f"{server.url}/v1/audio/transcriptions", files={"file": as_wav(sound(600))}, data={"model": "whisper"}
    )
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    lines = ["POST /v1/audio/transcriptions HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {request.headers[name]}" for name in ("content-type", "content-length")]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.read())
    assert eventually(lambda: server.running() == 1)
    connection.close()
    assert eventually(lambda: server.running() == 0)
    assert post(http, LONG).json()["text"] == text


def test_a_killed_runner_is_replaced(server: LocalServer, http: httpx.Client) -> None:
    """Of a request of which nothing was passed on nobody notices anything."""

    async def pid() -> int:
        return next(model.pid for model in server.pool.loaded() if model.spec.name == "whisper:latest")

    audio = as_wav(sound(150))  # long enough to be seen at work
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(post(http, audio).json()["text"]))
    thread.start()
    assert eventually(lambda: server.running() == 1)
    psutil.Process(server.ask(pid)).kill()
    thread.join(300)
    assert texts == [post(http, audio).json()["text"]]


def test_it_is_seen_where_models_are_seen(http: httpx.Client, text: str) -> None:
    loaded = http.get("/api/ps").json()["models"]
    assert "whisper:latest" in [model["name"] for model in loaded]
    metrics = http.get("/metrics").text
    assert re.search(r'omlx_http_requests_total\{[^}]*route="/v1/audio/transcriptions"[^}]*\} \d', metrics)
    requests = http.get("/api/omlx/requests").json()
    assert "/v1/audio/transcriptions" in json.dumps(requests)
    http.post("/api/generate", json={"model": "whisper", "keep_alive": 0})
    assert http.post("/v1/audio/transcriptions", files={"file": io.BytesIO(SHORT)}, data={"model": "whisper"}).json()


def test_folders_in_both_layouts_can_be_created(server: LocalServer, tmp_path: Path) -> None:
    """A model is accepted as it is published, or refused with a sentence; never listed where it cannot be loaded."""
    from omlx_registry import InvalidModel

    folder = make_whisper(tmp_path / "hf", "huggingface", multilingual=False)
    spec = server.registry.add_model_folder("hf", folder, transfer="copy")
    assert spec.capabilities == ["transcription", "audio"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_target_positions": 7}))
    with pytest.raises(InvalidModel, match="it states 7 text positions, but they have"):
        server.registry.add_model_folder("wrong", folder, transfer="copy")
