"""Tiny VLMs and turns with pictures for them, and what mlx-vlm itself makes of such a turn."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from mlx_vlm.models.cache import make_prompt_cache
from omlx_cache.store import PrefixStore

from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel, load_model
from omlx.engine.sequence import SequenceSpec
from omlx.engine.vision.media import PromptMedia
from omlx.engine.vision.vision import FeatureCache, Vision
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.engine.support import Replies, run, spec
from tests.support.tiny_vlm import draw, tiny_vlm

RED, BLUE = draw("red", "circle", side=150), draw("blue", "square", side=150, seed=1)


@cache
def model_of(kind: str) -> LoadedModel:
    """A tiny VLM whose replies do not end by themselves."""
    asked = LoadSpec(name=kind, path=str(tiny_vlm(kind)), fingerprint="test", engine=EngineConfig(context_length=4096))
    return msgspec.structs.replace(load_model(asked, measure=False), end_tokens=set())


def vision_of(kind: str) -> Vision:
    found = model_of(kind).vision
    assert found is not None
    return found


def machine(kind: str, store: PrefixStore | None = None) -> Engine:
    vision_of(kind).cache = FeatureCache(1 << 26)
    return Engine(model_of(kind), EngineConfig(context_length=4096), store)


def turn(kind: str, text: str, *files: bytes) -> tuple[list[int], PromptMedia]:
    """Token ids and pictures of a text in which `@` stands for the next file."""
    vision = vision_of(kind)
    shown = [vision.image(file) for file in files]
    text, parts = vision.place(text.replace("@", vision.family.image_marker), shown, [])
    return vision.media(model_of(kind).text_tokenizer.encode(text, add_special_tokens=False).ids, parts)


def asked(kind: str, id: int, text: str, *files: bytes, new: int = 16, **other: Any) -> SequenceSpec:
    tokens, media = turn(kind, text, *files)
    return spec(id, tokens, new=new, media=media, **other)


def reply(engine: Engine, request: SequenceSpec) -> list[int]:
    replies = run(engine, [request])
    assert replies.ends[request.id].failure is None, replies.ends[request.id].failure
    return replies.tokens[request.id]


def cached(replies: Replies, id: int) -> int:
    usage = replies.ends[id].usage
    assert usage is not None
    return usage.cached_tokens


def upstream(kind: str, tokens: list[int], media: PromptMedia, new: int) -> list[int]:
    """The yardstick: mlx-vlm's own model with its own caches, one sequence, the prompt in one piece."""
    network = vision_of(kind).family.network
    ids = mx.array([tokens])
    pixels = [item.picture.pixels() for item in media.placements]
    values = mx.array(np.concatenate([picture["pixels"] for picture in pixels]))
    more = {"image_grid_thw": mx.array(np.concatenate([p["grid"] for p in pixels]))} if "grid" in pixels[0] else {}
    values = values[None] if "patches" in pixels[0] else values
    features = network.get_input_embeddings(ids, values, mask=mx.ones_like(ids), **more)
    names = ("position_ids", "visual_pos_masks", "deepstack_visual_embeds", "rope_deltas")
    extra = {name: getattr(features, name) for name in names if getattr(features, name) is not None}
    deltas = {"rope_deltas": extra["rope_deltas"]} if "rope_deltas" in extra else {}
    own = make_prompt_cache(network.language_model)
    logits = network.language_model(ids, inputs_embeds=features.inputs_embeds, cache=own, **extra).logits
    found: list[int] = []
    while len(found) < new:
        found.append(int(mx.argmax(logits[0, -1]).item()))
        logits = network.language_model(mx.array([found[-1:]]), cache=own, **deltas).logits
    return found
