"""A turn with pictures gives the same reply alone, among other rows, with features that were kept, and restored."""

from __future__ import annotations

import gc
import io
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from omlx_cache.features import FeatureStore
from PIL import Image

from omlx.engine.engine import Engine
from omlx.engine.loader import load_model
from omlx.engine.vision.images import PictureError
from omlx.engine.vision.media import Shown
from omlx.engine.vision.vision import FeatureCache
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import GenerateRequest, Message, Video
from omlx.runner.multimodal import Illustrator
from tests.engine.seeing import BLUE, RED, asked, cached, machine, model_of, reply, turn, upstream, vision_of
from tests.engine.support import prompt, run, spec, store_for
from tests.support.precision import within
from tests.support.tiny_vlm import as_file, draw, tiny_vlm

KINDS = ["qwen2_5_vl", "qwen3_vl", "gemma3", "smolvlm"]


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "idefics3", "smolvlm"])
def test_replies_are_those_of_mlx_vlm(kind: str) -> None:
    text = "Two pictures: @ and @ What is in them?"
    tokens, media = turn(kind, text, as_file(RED), as_file(BLUE.resize((90, 150))))
    expected = upstream(kind, tokens, media, 16)
    assert reply(machine(kind), asked(kind, 1, text, as_file(RED), as_file(BLUE.resize((90, 150))))) == expected


def test_the_tokens_of_a_gemma_picture_see_each_other() -> None:
    """mlx-vlm leaves that out; the yardstick is one forward with a mask written down by hand."""
    family = vision_of("gemma3").family
    tokens, media = turn("gemma3", "So: @ What is it?", as_file(RED))
    inputs = vision_of("gemma3").inputs(media, mx.array([tokens]), 0)
    assert inputs is not None
    count, (start, end) = len(tokens), inputs.spans[0]
    mask = np.tril(np.ones((count, count), bool))
    mask[start:end, start:end] = True
    assert count <= 32, "the prompt fits the window, so one mask does for all layers"
    trunk = family.language_model.model
    head = family.language_model.lm_head
    # mlx-vlm scales its argument in place.
    expected = head(trunk(None, inputs_embeds=mx.array(inputs.embeds), mask=mx.array(mask)))
    causal = head(trunk(None, inputs_embeds=mx.array(inputs.embeds)))
    found = family(mx.array([tokens]), cache=family.make_cache(), inputs=inputs)
    assert mx.abs(found - expected).max().item() < within(1e-4)
    assert mx.abs(found - causal).max().item() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_alone_is_as_in_a_mixed_batch(kind: str) -> None:
    texts = ["@ What is it?", "Tell me: what do you see here? @", "@@ Compare."]
    files = [[as_file(RED)], [as_file(BLUE)], [as_file(BLUE), as_file(RED)]]
    requests = [asked(kind, at, text, *own) for at, (text, own) in enumerate(zip(texts, files, strict=True))]
    requests += [spec(10, prompt(60), new=20), spec(11, prompt(23, 3), new=20)]
    alone = [reply(machine(kind), request) for request in requests]
    together = run(machine(kind), requests, every=3)
    assert [together.tokens[request.id] for request in requests] == alone
    at_once = run(machine(kind), requests)
    assert [at_once.tokens[request.id] for request in requests] == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone), "each picture gives another reply"


@pytest.mark.parametrize("kind", KINDS)
def test_the_reply_depends_on_the_picture_and_its_place(kind: str) -> None:
    replies = [
        reply(machine(kind), asked(kind, 1, text, as_file(one), as_file(other)))
        for text, one, other in [("@ @ Say.", RED, BLUE), ("@ @ Say.", BLUE, RED), ("@ Say. @", RED, BLUE)]
    ]
    assert len({tuple(tokens) for tokens in replies}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_computed_once(kind: str) -> None:
    engine, vision = machine(kind), vision_of(kind)
    before = vision.stats()
    first = reply(engine, asked(kind, 1, "@ What is it?", as_file(RED)))
    assert reply(engine, asked(kind, 2, "@ What is it?", as_file(RED))) == first
    after = vision.stats()
    assert after.encoded == before.encoded + 1 and after.from_memory == 1
    # The same pixels in another file, beside a new picture: one more to encode.
    other = reply(engine, asked(kind, 3, "@@ Compare.", as_file(RED, "BMP"), as_file(BLUE)))
    assert vision.stats().encoded == before.encoded + 2
    assert other == reply(machine(kind), asked(kind, 3, "@@ Compare.", as_file(RED), as_file(BLUE)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_prefix_gives_the_same_reply(kind: str, tmp_path: Path) -> None:
    text, more = "Once upon a time there was a picture, and it looked like this: @ What is it?", " And what else? @"
    files = [as_file(RED), as_file(BLUE)]
    expected = reply(machine(kind), asked(kind, 1, text, files[0]))
    second = reply(machine(kind), asked(kind, 2, text + more, *files))
    store = store_for(model_of(kind), tmp_path)
    engine, vision = machine(kind, store), vision_of(kind)
    encoded = vision.encoded
    replies = run(engine, [asked(kind, 1, text, files[0])])
    assert replies.tokens[1] == expected
    replies = run(engine, [asked(kind, 2, text, files[0]), asked(kind, 3, text, files[1])])
    assert replies.tokens[2] == expected
    assert cached(replies, 2) > turn(kind, text, files[0])[1].placements[0].end
    assert cached(replies, 3) <= turn(kind, text, files[0])[1].placements[0].start, "another picture, another key"
    replies = run(engine, [asked(kind, 4, text + more, *files)])
    assert replies.tokens[4] == second
    assert cached(replies, 4) > 0
    assert vision.encoded == encoded + 2
    store.close()
    # After a restart all comes from disk: neither encoder nor prefill.
    store = store_for(model_of(kind), tmp_path)
    engine = machine(kind, store)
    replies = run(engine, [asked(kind, 5, text, files[0])])
    assert replies.tokens[5] == expected
    assert cached(replies, 5) > turn(kind, text, files[0])[1].placements[0].end
    assert vision.encoded == encoded + 2
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_may_be_read_in_pieces(kind: str) -> None:
    """Short chunks cut pictures apart, except where their tokens see each other."""
    text = "Word " * 30 + "@" + " and word" * 30 + "@" + " Say."
    files = [as_file(RED), as_file(BLUE)]
    expected = reply(machine(kind), asked(kind, 1, text, *files))
    tokens, media = turn(kind, text, *files)
    engine = machine(kind)
    engine._prompts.budget.tokens = lambda seconds: 7  # type: ignore[method-assign]
    assert reply(engine, spec(1, tokens, new=16, media=media)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_cache_holds_is_still_right(kind: str) -> None:
    engine, vision = machine(kind), vision_of(kind)
    expected = reply(engine, asked(kind, 1, "@@ Compare.", as_file(RED), as_file(BLUE)))
    vision.cache = FeatureCache(0)
    assert reply(engine, asked(kind, 2, "@@ Compare.", as_file(RED), as_file(BLUE))) == expected
    assert len(vision.cache) == 0


def test_a_full_context_ends_the_reply() -> None:
    request = asked("qwen3_vl", 1, "@ What is it?", as_file(RED), new=500)
    request = msgspec.structs.replace(request, limits=msgspec.structs.replace(request.limits, num_ctx=64))
    replies = run(machine("qwen3_vl"), [request])
    assert replies.ends[1].finish == "length"
    assert len(request.tokens) + len(replies.tokens[1]) == 64


def test_a_conversion_without_its_vision_tower_is_a_text_model(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_vlm("gemma3"), tmp_path / "blind")
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    kept = {name: value for name, value in weights.items() if name.startswith("language_model.")}
    mx.eval(kept)
    mx.save_safetensors(str(folder / "model.safetensors"), kept)
    loaded = load_model(
        LoadSpec(name="blind", path=str(folder), fingerprint="test", engine=EngineConfig(context_length=512)),
        measure=False,
    )
    assert loaded.vision is None
    assert run(Engine(loaded, EngineConfig(context_length=512)), [spec(1, prompt(20), new=4)]).tokens[1]


def test_files_are_remembered_without_their_bytes() -> None:
    """A picture that was seen is known again, and the memory of it is small."""
    vision, file = vision_of("qwen3_vl"), as_file(draw("green", "square", side=150, seed=8))
    engine = machine("qwen3_vl")
    reply(engine, asked("qwen3_vl", 1, "@ What is it?", file))
    decoded = vision.decoded
    kept = weakref.ref(vision.image(file).parts[0].picture)
    assert vision.decoded == decoded, "its features are at hand, so it is not even opened"
    gc.collect()
    assert kept() is None
    picture = vision.image(file).parts[0].picture
    assert picture.pixels()["pixels"].shape[0] == 36, "its pixels can be made again"


def test_an_encoder_that_fails_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, vision = machine("qwen3_vl"), vision_of("qwen3_vl")
    expected = reply(engine, spec(1, prompt(40), new=20))

    def fail(pictures: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(vision.family, "encode", fail)
    replies = run(engine, [spec(2, prompt(40), new=20), asked("qwen3_vl", 3, "@ ?", as_file(RED))])
    assert replies.tokens[2] == expected
    failure = replies.ends[3].failure
    assert failure is not None and "there was not enough memory" in failure[1]


def test_features_survive_a_restart_on_disk(tmp_path: Path) -> None:
    vision, text = vision_of("qwen3_vl"), "@ What is it?"
    store = store_for(model_of("qwen3_vl"), tmp_path)
    engine = machine("qwen3_vl")
    vision.cache.tier = FeatureStore(store)
    expected = reply(engine, asked("qwen3_vl", 1, text, as_file(RED)))
    store.close()
    # Without the prefix: the engine has no store of its own here.
    store = store_for(model_of("qwen3_vl"), tmp_path)
    engine, encoded = machine("qwen3_vl"), vision.encoded
    vision.cache.tier = FeatureStore(store)
    assert reply(engine, asked("qwen3_vl", 2, text, as_file(RED))) == expected
    assert (vision.encoded, vision.cache.from_disk) == (encoded, 1)
    store.clear()
    engine = machine("qwen3_vl")
    vision.cache.tier = FeatureStore(store)
    assert reply(engine, asked("qwen3_vl", 3, text, as_file(RED))) == expected
    assert vision.encoded == encoded + 1
    store.close()


# ---------------------------------------------------------------- files of a request
def animation(frames: int, side: int = 40) -> bytes:
    buffer = io.BytesIO()
    pages = [Image.new("RGB", (side, side), (number * 9 % 256, number % 256, 0)) for number in range(frames)]
    pages[0].save(buffer, "GIF", save_all=True, append_images=pages[1:], duration=100)
    return buffer.getvalue()


def holding(*messages: Message) -> GenerateRequest:
    return GenerateRequest(id=1, messages=[*messages])


def test_animations_are_taken_apart_once_and_within_the_limits_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    illustrator = Illustrator(vision_of("qwen3_vl"))

    def opened(*videos: Video) -> list[Shown]:
        shown = illustrator.open(holding(Message(role="user", content="x", videos=[*videos])), lambda: None)
        assert len(shown) == len(videos)
        return shown

    (video,) = opened(Video(frames=[animation(8)], fps=10, max_frames=4))
    assert video.frames == 4 and re.findall(r"<([0-9.]+) seconds>", video.text) == ["0.1", "0.5"]
    assert [shown.frames for shown in opened(Video(frames=[as_file(RED)], fps=10))] == [1]
    (long,) = opened(Video(frames=[animation(300)], fps=10))
    assert long.frames == 150, "as many as are taken, from all of it"
    with pytest.raises(PictureError, match="260 images"):
        opened(*[Video(frames=[animation(130)], fps=10)] * 2)
    monkeypatch.setattr("omlx.runner.multimodal.MOST_FRAME_PIXELS", 13 * 40 * 40)
    opened(Video(frames=[animation(12)], fps=10))
    opened(*[Video(frames=[animation(8)], fps=10, max_frames=4)] * 2)
    opened(*[Video(frames=[animation(8)], fps=10)] * 2)
    with pytest.raises(PictureError, match="smaller fps"):
        opened(*[Video(frames=[animation(count)], fps=10) for count in (7, 9)])


def test_pictures_of_a_request_that_nobody_waits_for_are_not_opened() -> None:
    vision, opened = vision_of("qwen3_vl"), 0

    class GoneError(Exception):
        pass

    def check() -> None:
        nonlocal opened
        opened += 1
        if opened == 3:
            raise GoneError

    files = [as_file(draw("blue", "triangle", side=112, seed=seed)) for seed in range(900, 906)]
    before = vision.decoded
    with pytest.raises(GoneError):
        Illustrator(vision).open(holding(Message(role="user", content="x", images=files)), check)
    assert vision.decoded == before + 2
    opened = 0
    with pytest.raises(GoneError):
        video = Message(role="user", content="x", videos=[Video(frames=files)])
        Illustrator(vision).open(holding(video), check)
    assert vision.decoded == before + 4
