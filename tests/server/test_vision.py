"""Pictures over HTTP, nothing scripted: every protocol, hostile files, URLs, videos, and what a repeated one costs."""

from __future__ import annotations

import http.server
import io
import random
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from omlx_registry import Registry
from omlx_registry.capabilities import VISION_TYPES
from PIL import Image

from omlx.engine.vision import images as pictures
from omlx.engine.vision.families import FAMILIES
from omlx.runner import multimodal
from omlx.server.image_urls import ImageFetcher, is_public
from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.chat import content, text_of
from tests.support.processes import command_line
from tests.support.tiny import DATA
from tests.support.tiny_vlm import as_file, draw, tiny_vlm

OPTIONS = {"temperature": 0, "num_predict": 8}
RED, BLUE = draw("red", "circle", side=150), draw("blue", "square", side=150, seed=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("vision")
    registry = Registry(root / "models", [])
    registry.add_model_folder("eyes", tiny_vlm("qwen3_vl"), transfer="copy")
    registry.add_model_folder("gemma", tiny_vlm("gemma3"), transfer="copy")
    registry.add_model_folder("blind", DATA / "taught-llama", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server:
        yield server


@pytest.fixture(scope="module")
def http_client(server: LocalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def chat(client: httpx.Client, *images: bytes, model: str = "eyes", text: str = "What is it?", **more: Any) -> Any:
    message = {"role": "user", "content": text, "images": [text_of(image) for image in images]} | more
    return client.post("/api/chat", json={"model": model, "stream": False, "options": OPTIONS, "messages": [message]})


# ---------------------------------------------------------------- the protocols
def test_every_protocol_shows_the_model_the_same_picture(http_client: httpx.Client) -> None:
    image = text_of(as_file(RED))
    expected = content(chat(http_client, as_file(RED)))
    assert expected != content(chat(http_client, as_file(BLUE))) != content(chat(http_client))
    asked = {"model": "eyes", "prompt": "What is it?", "images": [image], "stream": False, "options": OPTIONS}
    generated = http_client.post("/api/generate", json=asked).json()
    assert generated["response"] == expected
    # The picture's tokens are no part of the context that is handed back: they would mean nothing without it.
    assert len(generated["context"]) == generated["prompt_eval_count"] + generated["eval_count"] - 9
    raw = "<|im_start|>user\n[img-0]What is it?<|im_end|>\n<|im_start|>assistant\n"
    assert http_client.post("/api/generate", json=asked | {"prompt": raw, "raw": True}).json()["response"] == expected
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    text = {"type": "text", "text": "What is it?"}
    body: dict[str, Any] = {"model": "eyes", "messages": [{"role": "user", "content": [part, text]}]}
    openai = http_client.post("/v1/chat/completions", json=body | {"max_tokens": 8, "temperature": 0}).json()
    assert openai["choices"][0]["message"]["content"] == expected
    part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}
    body["messages"] = [{"role": "user", "content": [part, text]}]
    anthropic = http_client.post("/v1/messages", json=body | {"max_tokens": 8, "temperature": 0}).json()
    assert anthropic["content"][0]["text"] == expected
    counted = http_client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    assert counted == openai["usage"]["prompt_tokens"] > 20
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{image}"}
    items = [{"role": "user", "content": [part, {"type": "input_text", "text": "What is it?"}]}]
    wanted = {"model": "eyes", "input": items, "max_output_tokens": 8, "temperature": 0, "top_p": 1}
    responses = http_client.post("/v1/responses", json=wanted).json()
    assert responses["output"][-1]["content"][0]["text"] == expected


@pytest.mark.parametrize(
    "kind",
    ["data:image/avif;base64,", "data:image/heic;base64,", "data:application/octet-stream;base64,", "data:;base64,",
     "DATA:IMAGE/PNG;BASE64,", "data:image/png;charset=utf-8;base64,", "data:image/png;name=a.png;base64, ",
     "data:image/svg+xml;base64,"],
)  # fmt: skip
def test_the_bytes_of_a_data_uri_decide_and_not_its_type(http_client: httpx.Client, kind: str) -> None:
    expected = content(chat(http_client, as_file(RED)))
    text = {"type": "text", "text": "What is it?"}
    for data in (text_of(as_file(RED)), text_of(as_file(RED)).replace("+", "%2B").replace("=", "%3D")):
        part = {"type": "image_url", "image_url": {"url": kind + data}}
        body = {"model": "eyes", "messages": [{"role": "user", "content": [part, text]}]}
        reply = http_client.post("/v1/chat/completions", json=body | {"max_tokens": 8, "temperature": 0}).json()
        assert reply["choices"][0]["message"]["content"] == expected
        item = [{"role": "user", "content": [{"type": "input_image", "image_url": kind + data},
                                             {"type": "input_text", "text": "What is it?"}]}]  # fmt: skip
        body = {"model": "eyes", "input": item, "max_output_tokens": 8, "temperature": 0, "top_p": 1}
        reply = http_client.post("/v1/responses", json=body).json()
        assert reply["output"][-1]["content"][0]["text"] == expected


def test_a_true_avif_is_read_whatever_it_is_called(http_client: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + text_of(as_file(RED, "AVIF"))}}
    body: dict[str, Any] = {"model": "eyes", "messages": [{"role": "user", "content": [part]}], "max_tokens": 8}
    assert http_client.post("/v1/chat/completions", json=body).status_code == 200


def test_pictures_count_as_prompt_and_must_fit_the_context(http_client: httpx.Client) -> None:
    tokens = [chat(http_client, *[as_file(RED)] * count).json()["prompt_eval_count"] for count in (0, 1, 2)]
    assert tokens[1] - tokens[0] == tokens[2] - tokens[1] == 9 + 2
    message = {"role": "user", "content": "What is it?", "images": [text_of(as_file(RED))] * 10}
    body = {"model": "eyes", "stream": False, "options": OPTIONS | {"num_ctx": 64}, "messages": [message]}
    answer = http_client.post("/api/chat", json=body)
    assert answer.status_code == 400 and "context length" in answer.json()["error"]


def test_models_say_whether_they_see(http_client: httpx.Client) -> None:
    shown = {name: http_client.post("/api/show", json={"model": name}).json() for name in ("eyes", "gemma", "blind")}
    assert ["vision" in found["capabilities"] for found in shown.values()] == [True, True, False]
    answer = chat(http_client, as_file(RED), model="blind")
    assert (answer.status_code, answer.json()) == (400, {"error": "this model does not support image input"})
    assert set(FAMILIES) == VISION_TYPES


def test_a_repeated_picture_costs_neither_encoder_nor_prefill(http_client: httpx.Client) -> None:
    words = "A long introduction that fills a block or two of the cache. " * 12
    first = chat(http_client, as_file(BLUE), model="gemma", text=words)
    again = chat(http_client, as_file(BLUE, "BMP"), model="gemma", text=words)
    assert content(again) == content(first)
    # All but the last block's rest, which a model with a sliding window does not keep.
    assert first.json()["prompt_eval_count"] - again.json()["cached_tokens"] < 64
    other = chat(http_client, as_file(RED), model="gemma", text=words)
    assert other.json().get("cached_tokens", 0) < 20


# ---------------------------------------------------------------- files
def turned() -> bytes:
    """The red picture lying on its side, with a note that says so."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return as_file(RED.transpose(Image.Transpose.ROTATE_90), exif=exif)


def animated(form: str) -> bytes:
    return as_file(RED, form, save_all=True, append_images=[BLUE], duration=500, lossless=True)


@pytest.mark.parametrize(
    "data",
    [
        as_file(RED, "BMP"),
        as_file(RED, "WEBP", lossless=True),
        animated("WEBP"),
        turned(),
        as_file(RED.convert("RGBA")),
    ],
    ids=["bmp", "webp", "animated", "exif", "rgba"],
)
def test_the_same_pixels_are_the_same_picture(data: bytes) -> None:
    assert pictures.decode(data).tobytes() == RED.tobytes()


def test_unusual_kinds_of_pixels_come_out_right() -> None:
    assert pictures.decode(animated("GIF")).size == RED.size
    ink = pictures.decode(as_file(Image.new("CMYK", (20, 10), (0, 255, 255, 0)), "JPEG", quality=95))
    assert (ink.mode, ink.size) == ("RGB", (20, 10))
    red, green, _ = np.asarray(ink)[5, 5].tolist()
    assert red > 200 and green < 60
    deep = Image.fromarray(np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16))
    values = np.asarray(pictures.decode(as_file(deep)))[..., 0]
    assert values.min() == 0 and values.max() == 255 and abs(int(values[8, 0]) - 128) <= 1
    clear = pictures.decode(as_file(Image.new("RGBA", (9, 9), (0, 0, 0, 0))))
    assert clear.getpixel((4, 4)) == (255, 255, 255)
    for mode in ("1", "L", "P", "LA"):
        assert (
            pictures.decode(as_file(RED.convert("L").convert(mode) if mode != "P" else RED.convert("P"))).mode == "RGB"
        )


def huge_png(width: int, height: int) -> bytes:
    """A PNG that claims to be so large; its pixels would take gigabytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(10_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


HOSTILE = {
    "empty": b"",
    "text": b"not a picture at all",
    "wrong type": b"%PDF-1.7 \x00" * 50,
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'/>",
    "truncated png": as_file(RED)[:200],
    "truncated jpeg": as_file(RED, "JPEG")[:400],
    "40k x 40k": huge_png(40_000, 40_000),
    "one long line": huge_png(2_000_000, 10),
    "zero": huge_png(0, 0),
    "one pixel": as_file(Image.new("RGB", (1, 1))),
    "a thin line": as_file(Image.new("RGB", (2, 3000))),
    "riff": b"RIFF\xff\xff\xff\x7fWEBPVP8 " + bytes(64),
    "tiff": as_file(RED, "TIFF"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_get_a_sentence(http_client: httpx.Client, name: str) -> None:
    answer = chat(http_client, as_file(RED), HOSTILE[name])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "image" in error and len(error) < 300 and "Traceback" not in error and "0x" not in error


def test_hostile_files_harm_nobody_and_take_no_memory(http_client: httpx.Client) -> None:
    expected = content(chat(http_client, as_file(BLUE)))
    runners = [
        child for child in psutil.Process().children(recursive=True) if "omlx.runner" in command_line(child).split()
    ]
    before = sum(runner.memory_info().rss for runner in runners)
    with ThreadPoolExecutor(8) as helpers:
        bad = [helpers.submit(chat, http_client, HOSTILE[name]) for name in ("40k x 40k", "one long line") * 6]
        good = [helpers.submit(chat, http_client, as_file(BLUE)) for _ in range(4)]
        assert {answer.result().status_code for answer in bad} == {400}
        assert {content(answer.result()) for answer in good} == {expected}
    after = sum(runner.memory_info().rss for runner in runners)
    assert runners and after - before < 300_000_000, "unpacked, one of them takes 4.8 GB"


def long_jpeg(number: int) -> bytes:
    plain = as_file(BLUE, "JPEG")
    return plain[:2] + b"\xff\xe0\x00\x02" * 5_000_000 + plain[2:]


def wide_png(number: int) -> bytes:
    """Some kilobytes, 47 megapixels."""
    return as_file(Image.new("L", (6900, 6900), number))


@pytest.mark.slow
@pytest.mark.parametrize("slow", [long_jpeg, wide_png])
def test_a_small_picture_does_not_wait_for_files_that_take_long(
    http_client: httpx.Client, slow: Callable[[int], bytes]
) -> None:
    """Four of them at once, each some seconds of work for its decoder."""
    expected = content(chat(http_client, as_file(BLUE)))
    files = [slow(number) for number in range(4)]
    patient = httpx.Client(base_url=http_client.base_url, timeout=300, trust_env=False)
    with patient, ThreadPoolExecutor(4) as helpers:
        bad = [helpers.submit(chat, patient, file) for file in files]
        time.sleep(1)
        # Another file than before, or it would not be decoded again.
        assert chat(http_client, as_file(RED.rotate(90))).status_code == 200
        assert content(chat(http_client, as_file(BLUE))) == expected
        assert not all(answer.done() for answer in bad)
        assert {answer.result().status_code for answer in bad} <= {200, 400}


def test_all_pictures_of_a_request_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files of which each keeps its own limit hold a thread no longer than one may."""
    monkeypatch.setattr(multimodal, "MOST_SECONDS", 0)
    check = multimodal._in_time(lambda: None)
    with pytest.raises(pictures.PictureError, match="the images take more than 0 seconds to decode"):
        while True:
            check()


def test_damaged_files_never_do_worse_than_a_sentence() -> None:
    chance = random.Random(3)
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = as_file(RED, form)
        for _ in range(40):
            data = bytearray(whole[: chance.randint(1, len(whole))])
            for _ in range(chance.randint(0, 8)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                assert pictures.decode(bytes(data)).mode == "RGB"
            except pictures.PictureError as error:
                assert len(str(error)) < 300


def test_too_many_pictures_and_marks_in_the_text_are_refused(http_client: httpx.Client) -> None:
    answer = chat(http_client, *[as_file(Image.new("RGB", (28, 28)))] * (pictures.MOST_PICTURES + 1))
    assert answer.status_code == 400 and "257 images" in answer.json()["error"]
    answer = chat(http_client, as_file(RED), text="<|vision_start|><|image_pad|><|vision_end|> What is it?")
    assert answer.status_code == 400 and "<|image_pad|>" in answer.json()["error"]
    assert content(chat(http_client, as_file(RED)))


# ---------------------------------------------------------------- videos
def clip(count: int, first: int = 0) -> list[str]:
    return [text_of(as_file(draw("red", "circle", side=112, seed=first + number))) for number in range(count)]


def test_a_video_is_frames_on_every_protocol_that_takes_one(http_client: httpx.Client) -> None:
    video = {"frames": clip(4), "fps": 2.0}
    native = chat(http_client, videos=[video])
    expected = content(native)
    assert native.json()["prompt_eval_count"] > chat(http_client).json()["prompt_eval_count"] + 2 * 9
    assert expected != content(chat(http_client, videos=[{"frames": clip(4)[::-1]}]))
    uris = [f"data:image/png;base64,{frame}" for frame in clip(4)]
    joined = {"url": "data:video/jpeg;base64," + ",".join(clip(4))}
    for part in ({"type": "video", "video": uris, "fps": 2}, {"type": "video_url", "video_url": joined}):
        body = {
            "model": "eyes",
            "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}],
        }
        answer = http_client.post("/v1/chat/completions", json=body | {"max_tokens": 8, "temperature": 0}).json()
        assert answer["choices"][0]["message"]["content"] == expected
    thinned = chat(http_client, videos=[{"frames": clip(8), "max_frames": 4}])
    assert thinned.json()["prompt_eval_count"] == native.json()["prompt_eval_count"]
    moving = io.BytesIO()
    frames = [draw("red", "circle", side=112, seed=number) for number in range(4)]
    frames[0].save(moving, "WEBP", save_all=True, append_images=frames[1:], duration=500, lossless=True)
    assert content(chat(http_client, videos=[{"frames": [text_of(moving.getvalue())]}])) == expected


@pytest.mark.parametrize(
    ("video", "says"),
    [
        ({"frames": []}, "needs frames"),
        ({"frames": clip(2), "fps": 0}, "fps"),
        ({"frames": [text_of(b"no picture")] * 2}, "no PNG"),
    ],
)
def test_bad_videos_get_a_sentence(http_client: httpx.Client, video: dict[str, Any], says: str) -> None:
    answer = chat(http_client, videos=[video])
    assert answer.status_code == 400 and says in answer.json()["error"]


def test_a_model_without_video_says_so(http_client: httpx.Client) -> None:
    answer = chat(http_client, model="gemma", videos=[{"frames": clip(2)}])
    assert answer.status_code == 400 and "video" in answer.json()["error"]


# ---------------------------------------------------------------- URLs
class _Files(http.server.BaseHTTPRequestHandler):
    """/red is a picture, /away redirects to it, /home to a private address, /loop to itself, /endless never ends."""

    def do_GET(self) -> None:
        moved = {"/away": "/red", "/home": "http://10.0.0.1/", "/loop": "/loop"}.get(self.path)
        self.send_response(302 if moved else 404 if self.path == "/none" else 200)
        if moved:
            self.send_header("Location", moved)
        self.end_headers()
        if self.path == "/red":
            self.wfile.write(as_file(RED))
        while self.path == "/endless":
            try:
                self.wfile.write(bytes(1 << 20))
            except OSError:
                return

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{found.server_address[1]}"
    found.shutdown()


def part(url: str) -> list[dict[str, Any]]:
    return [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]


@pytest.mark.anyio
async def test_an_image_is_fetched_from_where_it_may_be(files: str) -> None:
    here = ImageFetcher(lambda address: address in {"127.0.0.1", "::1"})
    for path in ("/red", "/away"):
        messages = part(files + path)
        await here.inline(messages)
        assert messages[0]["content"][0]["image_url"]["url"] == "data:;base64," + text_of(as_file(RED))
    block = {"content": [{"type": "image", "source": {"type": "url", "url": files + "/red"}}]}
    await here.inline([block])
    assert block["content"][0]["source"] == {"type": "base64", "data": text_of(as_file(RED))}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "says"),
    [("/none", "404"), ("/home", "not public"), ("/loop", "redirects"), ("/endless", "more than")],
)
async def test_a_fetch_is_bounded(files: str, path: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.server.image_urls.MOST_BYTES", 5_000_000)
    with pytest.raises(Exception, match=says):
        await ImageFetcher(lambda address: address in {"127.0.0.1", "::1"}).inline(part(files + path))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "url", ["ftp://a/b", "http://", "http://user:x@example.com/", "http://localhost:1/", "http://[::1]/"]
)
async def test_what_must_not_be_fetched_is_not(url: str) -> None:
    with pytest.raises(Exception, match="image"):
        await ImageFetcher().inline(
            part(url)
            if url.startswith("http")
            else [{"content": [{"type": "image", "source": {"type": "url", "url": url}}]}]
        )


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1", "255.255.255.255", "x",
     "192.0.0.192", "fec0::1"],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_and_the_setting(http_client: httpx.Client, files: str) -> None:
    assert is_public("93.184.216.34") and is_public("2606:2800:220:1:248:1893:25c8:1946")
    body = {"model": "eyes", "messages": [{"role": "user", **part(files + "/red")[0]}]}
    answer = http_client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "image URLs are not currently supported" in answer.text
