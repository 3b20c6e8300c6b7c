"""A turn with a video gives the same reply alone, among other rows, with features that were kept, and restored."""

from __future__ import annotations

import gc
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine.engine import Engine
from omlx.engine.sequence import SequenceSpec
from omlx.engine.vision import video_file as videofile
from omlx.engine.vision.families import in_words
from omlx.engine.vision.family import VideoFamily
from omlx.engine.vision.images import PictureError
from omlx.engine.vision.vision import FeatureCache
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Video
from tests.engine.seeing import BLUE, RED, asked, cached, machine, model_of, reply, upstream, vision_of
from tests.engine.support import prompt, run, spec, store_for
from tests.support.films import film
from tests.support.precision import within
from tests.support.tiny_vlm import as_file, draw

KINDS = ["qwen2_5_vl", "qwen3_vl", "smolvlm"]


def clip(count: int, first: int = 0) -> list[bytes]:
    """Frames of something red that jumps about; frame n is the same in every clip."""
    return [as_file(draw("red", "circle", side=112, seed=number)) for number in range(first, first + count)]


def frames_per_moment(kind: str) -> int:
    family = vision_of(kind).family
    assert isinstance(family, VideoFamily)
    return family.frames_per_moment


def watched(kind: str, id: int, frames: list[bytes], fps: float = 2.0) -> SequenceSpec:
    vision = vision_of(kind)
    shown = [vision.video(Video(frames, fps))]
    text, parts = vision.place(f"So: {vision.family.video_marker} What happens?", [], shown)
    tokens, media = vision.media(model_of(kind).text_tokenizer.encode(text, add_special_tokens=False).ids, parts)
    return spec(id, tokens, new=12, media=media)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_a_video_is_read_as_mlx_vlm_reads_it(kind: str) -> None:
    """All frames in one call of the vision tower, and mlx-vlm's own positions (it does not count real time)."""
    vision, request = vision_of(kind), watched(kind, 1, clip(6), fps=1.0)
    media = request.media
    assert media is not None and media.positions is not None and len(media.placements) == 3
    pixels = [item.picture.pixels() for item in media.placements]
    together = dict(pixels[0]) | {"pixels": np.concatenate([picture["pixels"] for picture in pixels])}
    together["grid"] = np.array([[3, *pixels[0]["grid"][0, 1:]]], np.int32)
    whole, apart = vision.family.encode([together]), vision.family.encode(pixels)
    for layer, own in enumerate(whole[0]):
        joined = mx.concatenate([features[layer] for features in apart])
        assert mx.abs(own - joined).max().item() < within(1e-4)
    tokens = mx.array([request.tokens])
    expected, deltas = vision.family.language_model.get_rope_index(tokens, video_grid_thw=mx.array(together["grid"]))
    if kind == "qwen3_vl":
        assert np.array_equal(np.array(expected)[:, 0], media.positions)
        assert int(deltas.item()) == media.delta
    else:
        # Two frames a second apart, two a moment, two positions a second: moments are 4 positions apart.
        start = media.placements[0].start
        times = [media.positions[0, item.start] - start for item in media.placements]
        assert times == [0, 4, 8]
        assert np.array_equal(
            np.array(expected)[1:, 0, start : media.placements[-1].end],
            media.positions[1:, start : media.placements[-1].end],
        )


@pytest.mark.parametrize("kind", KINDS)
def test_clips_that_overlap_share_their_moments(kind: str, tmp_path: Path) -> None:
    vision, alone = vision_of(kind), reply(machine(kind), watched(kind, 1, clip(8, first=4)))
    new = 8 // frames_per_moment(kind)
    store = store_for(model_of(kind), tmp_path)
    engine, encoded = machine(kind, store), vision.encoded
    first = reply(engine, watched(kind, 1, clip(8)))
    assert vision.encoded == encoded + new
    # Frames 4 to 11: half of the moments are known, at another place of the clip and of the prompt.
    assert reply(engine, watched(kind, 2, clip(8, first=4))) == alone
    assert vision.encoded == encoded + new * 3 // 2
    replies = run(engine, [watched(kind, 3, clip(8))])
    assert replies.tokens[3] == first and vision.encoded == encoded + new * 3 // 2
    longer = watched(kind, 4, clip(12))
    replies = run(engine, [longer])
    assert longer.media is not None
    if kind != "smolvlm":  # which reads first how long the clip is
        assert cached(replies, 4) >= longer.media.placements[3].end, "a clip that goes on keeps what was read of it"
    store.close()


def test_the_same_frames_at_another_speed_are_another_prompt() -> None:
    store = store_for(model_of("qwen2_5_vl"))
    engine = machine("qwen2_5_vl", store)
    slow, fast = watched("qwen2_5_vl", 1, clip(4), fps=1.0), watched("qwen2_5_vl", 2, clip(4), fps=2.0)
    expected = reply(machine("qwen2_5_vl"), fast)
    assert reply(engine, slow) != expected
    replies = run(engine, [fast])
    assert replies.tokens[2] == expected and slow.tokens == fast.tokens and fast.media is not None
    assert cached(replies, 2) <= fast.media.placements[1].start


def test_an_odd_frame_stands_alone_and_all_frames_get_one_size() -> None:
    frames = [*clip(2), as_file(BLUE.resize((300, 80)))]
    request = watched("qwen3_vl", 1, frames)
    assert request.media is not None
    assert [item.picture.layout.runs for item in request.media.placements] == [(16,), (16,)]
    assert reply(machine("qwen3_vl"), request)


@pytest.mark.parametrize("kind", KINDS)
def test_alone_is_as_in_a_mixed_batch(kind: str) -> None:
    requests = [watched(kind, 1, clip(6)), watched(kind, 2, clip(4, first=9)), asked(kind, 3, "@ Say.", as_file(RED))]
    requests += [spec(10, prompt(60), new=12), spec(11, prompt(23, 3), new=12)]
    alone = [reply(machine(kind), request) for request in requests]
    for together in (run(machine(kind), requests, every=3), run(machine(kind), requests)):
        assert [together.tokens[request.id] for request in requests] == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone), "each gives another reply"


@pytest.mark.parametrize("kind", KINDS)
def test_kept_features_and_a_restored_prefix_give_the_same_reply(kind: str, tmp_path: Path) -> None:
    request = watched(kind, 1, clip(6))
    expected, vision = reply(machine(kind), request), vision_of(kind)
    store = store_for(model_of(kind), tmp_path)
    engine, encoded = machine(kind, store), vision.encoded
    assert reply(engine, watched(kind, 1, clip(6))) == expected
    encoded = vision.encoded
    # Without the prefix: features from memory.
    engine = Engine(model_of(kind), EngineConfig(context_length=4096), None)
    assert reply(engine, watched(kind, 2, clip(6))) == expected and vision.encoded == encoded
    store.close()
    # After a restart, all from disk.
    store = store_for(model_of(kind), tmp_path)
    replies = run(machine(kind, store), [watched(kind, 3, clip(6))])
    assert request.media is not None
    assert replies.tokens[3] == expected and vision.encoded == encoded
    assert cached(replies, 3) >= request.media.placements[-1].start
    store.close()


# ---------------------------------------------------------------- SmolVLM
def test_smolvlm_reads_frames_with_their_times_between_them() -> None:
    shown = vision_of("smolvlm").video(Video(clip(3), 0.04))
    frame = "<fake_token_around_image><global-img><image><fake_token_around_image>"
    assert shown.text == (
        "You are provided the following series of three frames from a 0:01:15 [H:MM:SS] video.\n"
        f"\nFrame from 00:00:{frame}\nFrame from 00:25:{frame}\nFrame from 00:50:{frame}\n\n"
    )
    assert all(part.picture.layout.runs == (4,) for part in shown.parts)
    numbers = {7: "seven", 20: "twenty", 64: "sixty-four", 100: "one hundred", 256: "two hundred and fifty-six"}
    assert {number: in_words(number) for number in numbers} == numbers


def test_smolvlm_squeezes_a_frame_into_one_tile_and_takes_64_of_them() -> None:
    vision = vision_of("smolvlm")
    wide = vision.video(Video([as_file(RED.resize((400, 100)))] * 2)).parts[0].picture
    assert wide.pixels()["pixels"].shape == (1, 3, 56, 56) and wide.pixels()["patches"].all()
    small = as_file(draw("red", "circle", side=16))
    assert vision.video(Video([small] * 100, 4.0)).frames == 64


def test_smolvlm_replies_are_those_of_mlx_vlm() -> None:
    request = watched("smolvlm", 1, clip(5))
    assert request.media is not None
    assert reply(machine("smolvlm"), request) == upstream("smolvlm", request.tokens, request.media, 12)


# ---------------------------------------------------------------- files
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_comes_again_is_not_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [draw("red", "circle", side=112, seed=number) for number in range(6)]
    file, vision = film(pictures, codec="libx264rgb", fps=2), vision_of(kind)
    engine = machine(kind)
    expected = reply(engine, watched(kind, 1, [file]))
    assert expected == reply(machine(kind), watched(kind, 1, clip(6))), "a file is the frames in it"
    decode = videofile.frames

    def refuse(*_: object) -> videofile.Clip:
        raise PictureError("it is decoded")

    monkeypatch.setattr(videofile, "frames", refuse)
    assert reply(engine, watched(kind, 2, [file])) == expected
    gc.collect()
    vision.cache = FeatureCache(1 << 26)
    with pytest.raises(PictureError, match="it is decoded"):
        watched(kind, 3, [file])
    # Features that go between the opening of the file and the reading of the prompt.
    monkeypatch.setattr(videofile, "frames", decode)
    engine = machine(kind)
    reply(engine, watched(kind, 4, [file]))
    late = watched(kind, 5, [file])
    vision.cache = FeatureCache(1 << 26)
    assert reply(engine, late) == expected
