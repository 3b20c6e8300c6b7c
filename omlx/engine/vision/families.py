"""The families of vision-language models: how each marks, prepares and encodes pictures, and runs its text part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import mlx.core as mx
import numpy as np
from PIL import Image

from omlx.engine.vision.family import Family, Features, Inputs, Timing, VideoFamily
from omlx.engine.vision.media import ImageLayout, Part, Picture, Pixels

_MOST_FRAME_TOKENS, _LEAST_FRAME_TOKENS = 768, 16
_VIDEO_TOKENS = 16384
"""Of all frames together, as far as the least for each allows."""


class QwenVL(VideoFamily):
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

    rotary = True
    frames_per_moment = 2

    def _placeholders(self) -> frozenset[int]:
        return frozenset({int(self.config.image_token_id), int(self.config.video_token_id)})

    def _markers(self, token: Callable[[int], str]) -> tuple[str, str]:
        self._image, self._video = token(self.config.image_token_id), token(self.config.video_token_id)
        start = int(self.config.vision_start_token_id)
        self._open, self._close = token(start), token(int(self.given.get("vision_end_token_id", start + 1)))
        return f"{self._open}{self._image}{self._close}", f"{self._open}{self._video}{self._close}"

    def process(self, image: Image.Image, options: Mapping[str, Any]) -> tuple[Pixels, ImageLayout]:
        made = self.processor([image], return_tensors="np", **options)
        grid = np.asarray(made["image_grid_thw"], np.int32)
        merge = int(self.config.vision_config.spatial_merge_size)
        rows, columns = int(grid[0, 1]) // merge, int(grid[0, 2]) // merge
        pixels = {"pixels": np.asarray(made["pixel_values"], np.float32), "grid": grid}
        return pixels, ImageLayout(f"{self._open}{self._image}{self._close}", (rows * columns,), (rows, columns))

    def frame_options(self, moments: int) -> dict[str, Any]:
        """The longer a video is, the smaller are its frames."""
        side = int(self.config.vision_config.patch_size * self.config.vision_config.spatial_merge_size)
        tokens = max(_LEAST_FRAME_TOKENS, min(_MOST_FRAME_TOKENS, _VIDEO_TOKENS // max(moments, 1)))
        size = self.processor.size
        least, most = int(size["shortest_edge"]), int(size["longest_edge"])
        most = min(most, tokens * side * side)
        return {"size": {"shortest_edge": min(least, most), "longest_edge": most}}

    def join_frames(self, frames: Sequence[Pixels]) -> Pixels:
        """The processor doubles a single frame; each gives one half."""
        vision = self.config.vision_config
        shape = (len(frames[0]["pixels"]), vision.in_channels, vision.temporal_patch_size, -1)
        first, second = (np.asarray(frame["pixels"]).reshape(shape) for frame in frames)
        both = np.stack([first[:, :, 0], second[:, :, -1]], axis=2)
        return {"pixels": both.reshape(len(both), -1), "grid": frames[0]["grid"]}

    def show_video(self, moments: Sequence[Picture], timing: Timing) -> tuple[str, tuple[Part, ...]]:
        fps, starts = timing.fps, range(0, timing.frames, 2)
        if self.config.model_type.startswith("qwen3"):
            # A moment is at the middle of its two frames; the last may be alone.
            seconds = ((frame + 0.5) / fps if frame + 1 < timing.frames else frame / fps for frame in starts)
            text = "".join(f"<{frame:.1f} seconds>{self._open}{self._video}{self._close}" for frame in seconds)
            return text, tuple(Part(moment) for moment in moments)
        step_s = 2 / fps
        rate = float(getattr(self.config.vision_config, "tokens_per_second", 1) or 1)
        rate = rate if self.config.model_type.startswith("qwen2_5") else 1 / step_s
        parts = [Part(moment, int(number * step_s * rate + 1e-6), number > 0) for number, moment in enumerate(moments)]
        return self._open + self._video * len(parts) + self._close, tuple(parts)

    def encode(self, pictures: Sequence[Pixels]) -> list[Features]:
        tower = self.network.vision_tower
        pixels = mx.array(np.concatenate([picture["pixels"] for picture in pictures]))
        grids = np.concatenate([picture["grid"] for picture in pictures])
        out = tower(pixels.astype(tower.patch_embed.proj.weight.dtype), mx.array(grids))
        layers = [out[0], *out[1]] if isinstance(out, tuple) else [out]
        merge = int(self.config.vision_config.spatial_merge_size) ** 2
        ends = np.cumsum(grids.prod(axis=1) // merge)[:-1].tolist()
        return [tuple(parts) for parts in zip(*(mx.split(layer, ends) for layer in layers), strict=True)]

    def __call__(
        self, tokens: mx.array, *, cache: list[Any], inputs: Inputs | None = None, positions: mx.array | None = None
    ) -> mx.array:
        model = self.language_model
        more: dict[str, Any] = {}
        if inputs is not None:
            more["inputs_embeds"] = inputs.embeds
            if inputs.deep:
                more["visual_pos_masks"] = mx.array(inputs.seen)[None]
                more["deepstack_visual_embeds"] = list(inputs.deep)
        if positions is None:
            positions = _places(cache[0].offset, tokens)
        hidden = model.model(tokens, cache=cache, position_ids=positions, **more)
        tied = model.args.tie_word_embeddings
        logits: mx.array = model.model.embed_tokens.as_linear(hidden) if tied else model.lm_head(hidden)
        return logits


class Gemma3(Family):
    whole = True

    def _markers(self, token: Callable[[int], str]) -> tuple[str, str]:
        self._image = token(self.config.image_token_index)
        self._open = token(int(self.given.get("boi_token_index", 255999)))
        self._close = token(int(self.given.get("eoi_token_index", 256000)))
        return self._open, ""

    def process(self, image: Image.Image, options: Mapping[str, Any]) -> tuple[Pixels, ImageLayout]:
        made = self.processor([image], do_pan_and_scan=False, return_tensors="np", **options)
        count = int(self.network.multi_modal_projector.tokens_per_side) ** 2
        text = f"\n\n{self._open}{self._image}{self._close}\n\n"
        return {"pixels": np.asarray(made["pixel_values"], np.float32)}, ImageLayout(text, (count,))

    def encode(self, pictures: Sequence[Pixels]) -> list[Features]:
        pixels = mx.array(np.concatenate([picture["pixels"] for picture in pictures])).transpose(0, 2, 3, 1)
        dtype = self.language_model.model.norm.weight.dtype
        hidden, _, _ = self.network.vision_tower(pixels.astype(dtype), output_hidden_states=True)
        features = self.network.multi_modal_projector(hidden)
        # The text model scales all its embeddings up; a picture's are of the right size already.
        features = features / (self.config.text_config.hidden_size**0.5)
        return [(features[row],) for row in range(len(pictures))]

    def __call__(
        self, tokens: mx.array, *, cache: list[Any], inputs: Inputs | None = None, positions: mx.array | None = None
    ) -> mx.array:
        model = self.language_model
        if inputs is None:
            plain: mx.array = model.lm_head(model.model(tokens, cache=cache))
            return plain
        trunk = model.model
        pattern, window = trunk.sliding_window_pattern, trunk.window_size
        embeds = inputs.embeds
        hidden = embeds * mx.array(trunk.config.hidden_size**0.5, mx.bfloat16).astype(embeds.dtype)
        # As in training, the tokens of a picture see each other, later ones too. mlx-vlm's own forward leaves that out.
        everywhere = _mask(cache[pattern - 1], inputs, None)
        nearby = _mask(cache[0], inputs, window) if pattern > 1 else everywhere
        for number, (layer, own) in enumerate(zip(trunk.layers, cache, strict=True)):
            hidden = layer(hidden, everywhere if number % pattern == pattern - 1 else nearby, own)
        logits: mx.array = model.lm_head(trunk.norm(hidden))
        return logits


class Idefics3(Family):
    """Idefics3 and SmolVLM's images: a large picture is cut into tiles, with the whole of it, smaller, behind them."""

    def _markers(self, token: Callable[[int], str]) -> tuple[str, str]:
        self._image = token(self.config.image_token_index)
        return self._image, ""

    def process(self, image: Image.Image, options: Mapping[str, Any]) -> tuple[Pixels, ImageLayout]:
        made = self.processor([[image]], return_row_col_info=True, return_tensors="np", **options)
        pixels = np.asarray(made["pixel_values"], np.float32)[0]
        rows, columns = int(made["rows"][0][0]), int(made["cols"][0][0])
        vision = self.config.vision_config
        mask = made.get("pixel_attention_mask")
        mask = np.ones((len(pixels), *pixels.shape[2:]), bool) if mask is None else np.asarray(mask, bool)[0]
        patch = int(vision.patch_size)
        height, width = mask.shape[1] // patch, mask.shape[2] // patch
        cut = mask[:, : height * patch, : width * patch].reshape(len(mask), height, patch, width, patch)
        count = height * width // int(self.config.scale_factor) ** 2
        around = "<fake_token_around_image>"
        tiles = "".join(
            "".join(f"{around}<row_{row + 1}_col_{column + 1}>{self._image}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        tiles += "\n" if tiles else ""
        text = f"{tiles}{around}<global-img>{self._image}{around}"
        return {"pixels": pixels, "patches": cut.any(axis=(2, 4))}, ImageLayout(text, (count,) * len(pixels))

    def encode(self, pictures: Sequence[Pixels]) -> list[Features]:
        pixels = mx.array(np.concatenate([picture["pixels"] for picture in pictures])).transpose(0, 2, 3, 1)
        patches = mx.array(np.concatenate([picture["patches"] for picture in pictures]))
        dtype = self.language_model.norm.weight.dtype
        hidden, *_ = self.network.vision_model(
            pixels.astype(dtype), patch_attention_mask=patches, output_hidden_states=True
        )
        features = self.network.connector(hidden.astype(dtype))
        ends = np.cumsum([len(picture["pixels"]) for picture in pictures])[:-1].tolist()
        return [(tiles.reshape(-1, tiles.shape[-1]),) for tiles in mx.split(features, ends)]

    def embed(self, tokens: mx.array) -> mx.array:
        embedded: mx.array = self.language_model.embed_tokens(tokens)
        return embedded

    def __call__(
        self, tokens: mx.array, *, cache: list[Any], inputs: Inputs | None = None, positions: mx.array | None = None
    ) -> mx.array:
        embeds = inputs.embeds if inputs is not None else None
        logits: mx.array = self.language_model(tokens, inputs_embeds=embeds, cache=cache).logits
        return logits


class SmolVLM(Idefics3, VideoFamily):
    """Videos are frames with their times between them, each squeezed into one tile."""

    def _markers(self, token: Callable[[int], str]) -> tuple[str, str]:
        return super()._markers(token)[0], "<video>"

    @property
    def most_frames(self) -> int:
        return int(self._sampling.get("max_frames", 64))

    @property
    def _sampling(self) -> dict[str, Any]:
        return getattr(self.processor, "video_sampling", None) or {}

    def frame_options(self, moments: int) -> dict[str, Any]:
        size = self._sampling.get("video_size") or self.processor.max_image_size
        return {"do_image_splitting": False, "size": {"longest_edge": int(size["longest_edge"])}}

    def show_video(self, moments: Sequence[Picture], timing: Timing) -> tuple[str, tuple[Part, ...]]:
        count, length = in_words(timing.frames), timedelta(seconds=int(timing.length_s))
        text = f"You are provided the following series of {count} frames from a {length} [H:MM:SS] video.\n"
        for number, moment in enumerate(moments):
            minutes, seconds = divmod(int(number / timing.fps), 60)
            text += f"\nFrame from {minutes:02}:{seconds:02}:{moment.layout.text}"
        return text + "\n\n", tuple(Part(moment) for moment in moments)


FAMILIES: Final[Mapping[str, type[Family]]] = {
    "qwen2_vl": QwenVL,
    "qwen2_5_vl": QwenVL,
    "qwen3_vl": QwenVL,
    "qwen3_vl_moe": QwenVL,
    "gemma3": Gemma3,
    "idefics3": Idefics3,
    "smolvlm": SmolVLM,
}
"""By `model_type` of config.json."""


_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    """A number below 1000, as in "one hundred and twenty-one"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10 - 2] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    return f"{_ONES[number // 100]} hundred" + (f" and {in_words(number % 100)}" if number % 100 else "")


def _places(offset: Any, tokens: mx.array) -> mx.array:
    """[3, B, n]: the places of the next n tokens behind a cache's `offset` (a number, or one per row)."""
    rows, count = tokens.shape
    start = offset[:, None] if isinstance(offset, mx.array) and offset.ndim else offset
    return mx.broadcast_to(mx.arange(count)[None] + start, (3, rows, count))


def _mask(cache: Any, inputs: Inputs, window: int | None) -> mx.array:
    """[n, columns]: the cache's own mask for the chunk, opened within each picture."""
    count = inputs.embeds.shape[1]
    mask = cache.make_mask(count, return_array=True, window_size=window)
    number = np.zeros(count, np.int32)
    for index, (start, end) in enumerate(inputs.spans, 1):
        number[start:end] = index
    same = (number[:, None] == number[None]) & (number[:, None] > 0)
    if mask is None:  # a single token, which sees all
        return mx.ones((1, 1), mx.bool_)
    opened = np.zeros((count, mask.shape[-1]), bool)
    opened[:, mask.shape[-1] - count :] = same
    joined: mx.array = mask | mx.array(opened)
    return joined
