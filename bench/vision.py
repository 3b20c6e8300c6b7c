"""What pictures cost the second time, and embeddings against the network alone.

python bench/vision.py the shape that suits this device, as a table; --json FILE for the figures python
bench/vision.py --shapes qwen3-vl-8b --only pictures python bench/vision.py --quick few rounds of a tiny model, to
see that everything runs

Weights are random: a model of the right shape is as fast as a trained one. TTFT runs from the request's messages,
with the image as a PNG file, to the first token: opening the file, rendering, looking up, encoding and prefill
included. A conversation goes on with fixed answers, so that the one with the picture and the one without differ in
it alone.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omlx.engine import blas

BLAS = blas.prepare()

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_tokenizer
from omlx_cache.store import PrefixStore, StoreConfig
from PIL import Image

from omlx.engine.encode.embed import EncoderEmbedder
from omlx.engine.encode.rows import EncodeRow, RowMaker
from omlx.engine.engine import Engine
from omlx.engine.fuse import fuse
from omlx.engine.loader import LoadedModel, device, wrap
from omlx.engine.sequence import SequenceSpec
from omlx.engine.vision import loader as vision_loader
from omlx.messages.frames import Embed, Embedded
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import GenerateRequest, Limits, Message, Sampling, Video
from omlx.prompting.template import PromptTemplate
from omlx.runner.encode_jobs import EncodeJobs
from omlx.runner.prompt import Prompter, PromptTokenizer
from tests.support import tiny_vlm
from tests.support.tiny_encoder import CONFIGS, write_speller

CONTEXT = 32768
SIDE = 1024
_TEXT: dict[str, Any] = {
    "model_type": "qwen3_vl_text",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "rope_theta": 5000000.0,
    "max_position_embeddings": CONTEXT,
    "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
_VISION: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "num_position_embeddings": 2304,
}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3-vl-8b": (
        _TEXT | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
        _VISION
        | {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096}
        | {"deepstack_visual_indexes": [8, 16, 24]},
    ),
    "qwen3-vl-4b": (
        _TEXT | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
        _VISION
        | {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560}
        | {"deepstack_visual_indexes": [5, 11, 17]},
    ),
    "tiny": (
        _TEXT
        | {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
        | {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 640, "tie_word_embeddings": True}
        | {"rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True}},
        _VISION
        | {"depth": 4, "num_heads": 4, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": 128}
        | {"deepstack_visual_indexes": [1]},
    ),
}
QUESTIONS = [
    "Describe this picture for somebody who cannot see it, in a few sentences: what is in it, and where?",
    "And what could have happened a moment before it was taken? Give two possible answers.",
]
ANSWER = "There is something round in the middle of it, rather large, with light falling on it from the left. " * 2
Row_ = dict[str, Any]


# ---------------------------------------------------------------- the model
class Seeing:
    """A model with its prefix store, asked one request at a time."""

    def __init__(self, shape: str, folder: Path, fingerprint: str) -> None:
        tiny_vlm.make(folder, "qwen3_vl")
        text, tower = SHAPES[shape]
        config = json.loads((folder / "config.json").read_text())
        config |= {"text_config": text, "vision_config": tower, "vocab_size": text["vocab_size"]}
        (folder / "config.json").write_text(json.dumps(config))
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        settings |= {"patch_size": 16, "min_pixels": 65536, "max_pixels": 16777216}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        network = tiny_vlm.network("qwen3_vl", config)
        dtype = mx.float32 if device() == "cpu" else mx.bfloat16
        network.update(tree_map(lambda value: value.astype(dtype), network.parameters()))
        fuse(network)
        mx.eval(network.parameters())
        tokenizer = load_tokenizer(folder)
        vision = vision_loader.open_vision(folder, network, config, tokenizer, salt=fingerprint, max_bytes=4 << 30)
        self.model: LoadedModel = wrap(
            vision.family, tokenizer, max_context=CONTEXT, weights=str(dtype), weight_bytes=0, measure=True
        )
        self.model.vision, self.model.end_tokens = vision, set()
        self.vision = vision
        store = PrefixStore(self.model.layout, StoreConfig(fingerprint=fingerprint, hot_bytes=16 << 30))
        self._engine = Engine(self.model, EngineConfig(context_length=CONTEXT, warm_up=device() != "cpu"), store)
        template = PromptTemplate.from_jinja(tokenizer.chat_template)
        self._prompter = Prompter(template, PromptTokenizer(tokenizer), vision=vision)
        self._next = 1

    def first_token(self, messages: list[Message]) -> float:
        """Seconds from messages to the first token; the request runs on to its end."""
        begun = time.perf_counter()
        prompt = self._prompter.build(GenerateRequest(id=self._next, messages=messages), CONTEXT)
        self._engine.add(
            SequenceSpec(
                id=self._next, tokens=prompt.tokens, media=prompt.media,
                sampling=Sampling(temperature=0), limits=Limits(num_predict=4),
            )
        )  # fmt: skip
        self._next += 1
        seconds = 0.0
        while self._engine.has_work:
            for output in self._engine.step():
                if output.failure is not None:
                    raise RuntimeError(output.failure[1])
                if output.tokens and not seconds:
                    seconds = time.perf_counter() - begun
        return seconds


def noise(side: int, seed: int) -> bytes:
    """A picture that no other round has, as a PNG file: smooth shapes with a little noise."""
    chance = np.random.default_rng(seed)
    coarse = Image.fromarray(chance.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((side, side))
    pixels = np.asarray(coarse).astype(np.int16) + chance.integers(-4, 5, (side, side, 1))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def conversation(turns: int, opening: str, **pictures: Any) -> list[Message]:
    """`turns` questions; all but the last are answered."""
    messages = [Message("system", opening)]
    for turn in range(turns):
        messages.append(Message("user", QUESTIONS[turn], **(pictures if turn == 0 else {})))
        if turn + 1 < turns:
            messages.append(Message("assistant", ANSWER))
    return messages


# ---------------------------------------------------------------- what is measured
def pictures(shape: str, seeing: Seeing, options: argparse.Namespace) -> list[Row_]:
    """An image of 1024 x 1024: first turn, second turn, and the same conversation without it."""
    found: dict[str, list[float]] = {name: [] for name in ("first", "second", "without", "elsewhere")}
    for number in range(options.rounds + 1):
        opening, image = f"You look at pictures. This is conversation {number}.", noise(SIDE, number)
        shown, plain = {"images": [image]}, f"You talk. This is conversation {number}."
        took = {"first": seeing.first_token(conversation(1, opening, **shown))}
        seeing.first_token(conversation(1, plain))
        took["without"] = seeing.first_token(conversation(2, plain))
        took["second"] = seeing.first_token(conversation(2, opening, **shown))
        took["elsewhere"] = seeing.first_token(conversation(1, f"Another one: {number}.", **shown))
        for name, seconds in took.items():
            found[name] += [seconds] if number else []  # the first round compiles
    medians = {name: statistics.median(values) * 1000 for name, values in found.items()}
    return [
        {
            "what": f"{shape}, image {SIDE} x {SIDE}",
            "first turn ms": medians["first"],
            "second turn ms": medians["second"],
            "second without it ms": medians["without"],
            "with / without (wanted <= 1.3)": medians["second"] / medians["without"],
            "first / second (published 28)": medians["first"] / medians["second"],
            "in another prompt ms": medians["elsewhere"],
        }
    ]


def videos(shape: str, seeing: Seeing, options: argparse.Namespace) -> list[Row_]:
    """A clip of frames: new, again, and one that overlaps it by half."""
    found: dict[str, list[float]] = {name: [] for name in ("new", "again", "overlap")}
    shared = 0
    for number in range(options.rounds + 1):
        frames = [noise(448, 1000 + 100 * number + at) for at in range(options.frames * 3 // 2)]
        opening = f"You watch videos. This is conversation {number}."

        def ask(part: list[bytes], opening: str = opening) -> float:
            return seeing.first_token(conversation(1, opening, videos=[Video(part)]))

        took = {"new": ask(frames[: options.frames]), "again": ask(frames[: options.frames])}
        encoded = seeing.vision.encoded
        took["overlap"] = ask(frames[options.frames // 2 :])
        shared = options.frames // 2 - (seeing.vision.encoded - encoded)
        for name, seconds in took.items():
            found[name] += [seconds] if number else []
    medians = {name: statistics.median(values) * 1000 for name, values in found.items()}
    return [
        {
            "what": f"{shape}, clip of {options.frames} frames of 448 x 448",
            "new ms": medians["new"],
            "again ms": medians["again"],
            "new / again (published 24.7)": medians["new"] / medians["again"],
            "half new ms": medians["overlap"],
            "moments shared": shared,
        }
    ]


def embeddings(options: argparse.Namespace) -> list[Row_]:
    """MiniLM's shape, 32 texts of 128 tokens at a time: the jobs of a runner against the bare network."""
    from mlx_vlm.models import bert

    layers = 2 if options.quick else 6
    shape = {"hidden_size": 384, "num_hidden_layers": layers, "num_attention_heads": 12, "intermediate_size": 1536}
    config = bert.ModelConfig.from_dict(
        CONFIGS["bert"] | shape | {"max_position_embeddings": 512, "model_type": "bert"}
    )
    network = bert.Model(config)
    network.eval()
    mx.eval(network.parameters())
    with tempfile.TemporaryDirectory() as folder:
        write_speller(Path(folder))
        tokenizer = load_tokenizer(Path(folder)).backend_tokenizer
    network.pooling_config = {"pooling_mode": "mean"}
    texts = [("abcdefghij klmno " * 12)[at : at + 126].replace(" ", "x") for at in range(32)]
    embedder = EncoderEmbedder(network, RowMaker(tokenizer, limit=512, filler=0), 0)
    rows: list[EncodeRow] = embedder.rows(texts, truncate=True)
    tokens = mx.array([row.tokens for row in rows])
    mask = mx.ones_like(tokens)

    def bare() -> None:
        mx.eval(network(tokens, attention_mask=mask).text_embeds)

    vectors = EncodeJobs(lambda: None, embedder=embedder, reranker=None)
    numbers = iter(range(1, 1_000_000))

    def ours() -> None:
        vectors.submit(Embed(id=next(numbers), inputs=list(texts)))
        while not any(isinstance(answer, Embedded) for answer in vectors.step(1.0)):
            pass

    times: dict[Callable[[], None], list[float]] = {bare: [], ours: []}
    for number in range(2 * options.rounds + 1):
        for candidate in times:
            begun = time.perf_counter()
            candidate()
            times[candidate] += [time.perf_counter() - begun] if number else []
    vectors.close()
    rates = {candidate.__name__: len(texts) / statistics.median(values) for candidate, values in times.items()}
    return [
        {
            "what": f"embeddings, MiniLM's shape, 32 texts of {tokens.shape[1]} tokens",
            "bare texts/s": rates["bare"],
            "omlx texts/s": rates["ours"],
            "ratio (wanted >= 0.9)": rates["ours"] / rates["bare"],
        }
    ]


def show(rows: list[Row_]) -> None:
    for row in rows:
        print(row["what"])
        for name, value in row.items():
            if name != "what":
                print(f"  {name:34}{value:10.2f}" if isinstance(value, float) else f"  {name:34}{value:10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--only", choices=["pictures", "videos", "embeddings"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.frames = 2, 8
    shapes = options.shapes or (["tiny"] if device() == "cpu" or options.quick else ["qwen3-vl-8b"])
    print(f"device {device()}, BLAS {BLAS}")
    rows: list[Row_] = []
    for shape in shapes if options.only != "embeddings" else []:
        with tempfile.TemporaryDirectory() as folder:
            seeing = Seeing(shape, Path(folder), shape)
            for measure in (pictures, videos):
                if options.only in {None, measure.__name__}:
                    rows += measure(shape, seeing, options)
                    show(rows[-1:])
    if options.only in {None, "embeddings"}:
        rows += embeddings(options)
        show(rows[-1:])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
