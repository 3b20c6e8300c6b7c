"""Loading a Whisper folder into memory: mlx-audio's network with its tokenizer, in MLX's layout and Hugging Face's.

Whisper computes in float32 or float16. The weight format is chosen as for any other model, with float16 in place of
bfloat16.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE
from mlx_audio.stt.models.whisper.whisper import HFTokenizerWrapper, Model, ModelDimensions
from mlx_audio.utils import apply_quantization, load_weights
from mlx_lm.utils import get_total_parameters
from omlx_registry.speech import is_speech
from transformers import WhisperTokenizer

from omlx.engine import loader, weights
from omlx.engine.jsonfile import read_json
from omlx.engine.loader import Progress
from omlx.engine.model_folder import InvalidModel, loadable
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

_NEEDED = (
    "<|startoftranscript|>", "<|startofprev|>", "<|startoflm|>", "<|transcribe|>", "<|translate|>",
    "<|notimestamps|>", "<|0.00|>", "<|30.00|>",
)  # fmt: skip
_TIMES = 1500
"""Timestamp tokens after the first one."""


class Tokenizer(HFTokenizerWrapper):  # type: ignore[misc]
    """mlx-audio's tokenizer of one language and task. What it looks up anew for each token is looked up once."""

    eot = cached_property(HFTokenizerWrapper.eot.fget)
    timestamp_begin = cached_property(HFTokenizerWrapper.timestamp_begin.fget)
    sot = cached_property(HFTokenizerWrapper.sot.fget)
    no_timestamps = cached_property(HFTokenizerWrapper.no_timestamps.fget)
    no_speech = cached_property(HFTokenizerWrapper.no_speech.fget)
    non_speech_tokens = cached_property(HFTokenizerWrapper.non_speech_tokens.fget)


class Network(Model):  # type: ignore[misc]
    """mlx-audio's Whisper. `languages`: the codes that it knows."""

    def use(self, tokenizer: Any) -> None:
        """Raises LoadError where `tokenizer` (of transformers) is none for this network."""
        vocabulary = tokenizer.get_vocab()
        missing = [token for token in _NEEDED if token not in vocabulary]
        if missing:
            raise LoadError(f"its tokenizer is not Whisper's: it has no {missing[0]}")
        first, last = vocabulary["<|0.00|>"], max(vocabulary.values())
        if first + _TIMES >= self.dims.n_vocab or last >= self.dims.n_vocab or tokenizer.eos_token_id >= first:
            raise LoadError("its tokenizer does not match the network: it has other tokens")
        self._plain = tokenizer
        self._tokenizers: dict[tuple[str | None, str], Tokenizer] = {}
        codes = list(LANGUAGES)[: self.num_languages] if self.is_multilingual else ["en"]
        self.languages = [code for code in codes if not self.is_multilingual or f"<|{code}|>" in vocabulary]

    def get_tokenizer(self, language: str | None = None, task: str = "transcribe") -> Tokenizer:
        """As mlx-audio's; made once."""
        key = (language, task)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizer(
                self._plain,
                multilingual=self.is_multilingual,
                num_languages=self.num_languages,
                language=language,
                task=task,
            )
        return self._tokenizers[key]


def language_code(language: str) -> str:
    """ "German", "de" and "de-DE" as "de"; what is no language as it is."""
    name = language.strip().lower()
    code = TO_LANGUAGE_CODE.get(name, name)
    return str(code if code in LANGUAGES else code.replace("_", "-").partition("-")[0])


class LoadedSpeech:
    """A Whisper model in memory. `weights` says how they are held."""

    def __init__(self, network: Network, weights: str, weight_bytes: int) -> None:
        self.network = network
        self.weights = weights
        self.weight_bytes = weight_bytes


def load_speech(spec: LoadSpec, progress: Progress) -> LoadedSpeech:
    """Raises LoadError."""
    if spec.adapter_path:
        raise LoadError(f"{spec.name} cannot be loaded: adapters are not supported for this kind of model")
    try:
        with loadable(spec.path, trust_remote_code=spec.trust_remote_code) as path:
            config = read_json(path / "config.json")
            if not is_speech(config):
                raise LoadError("it is not a Whisper model")
            plan = _plan(spec, config)
            network = open_network(path, config, mx.float32 if plan.dtype == "float32" else mx.float16)
            network.use(WhisperTokenizer.from_pretrained(path))
            _, size = loader.hold(network, plan, progress)
    except (
        LoadError, InvalidModel, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError
    ) as error:  # fmt: skip
        raise LoadError(f"{spec.name} cannot be loaded: {error}") from error
    return LoadedSpeech(network, plan.text, size)


def _plan(spec: LoadSpec, config: dict[str, Any]) -> weights.WeightsPlan:
    # Weights are lazy until they are evaluated: this network takes no memory.
    sample = Network(ModelDimensions.from_dict(config))
    plan = weights.choose(
        spec.weights,
        device=loader.device(),
        quantized="quantization" in config,
        parameters=int(get_total_parameters(sample)),
        free_bytes=loader.usable_memory(spec.memory_bytes),
    )
    return plan._replace(dtype="float16") if plan.dtype == "bfloat16" else plan


def open_network(path: Path, config: dict[str, Any], dtype: Any) -> Network:
    """The network with lazy weights. Raises ValueError if they do not match it."""
    network = Network(ModelDimensions.from_dict(config), dtype)
    tensors = network.sanitize(load_weights(path))
    apply_quantization(network, config, tensors, None)
    own = dict(tree_flatten(network.parameters()))
    # Skips the output layer, which is tied to the embedding, and tables that mlx-audio computes.
    network.load_weights([(name, value) for name, value in tensors.items() if name in own], strict=True)
    heads = read_json(path / "generation_config.json").get("alignment_heads")
    if isinstance(heads, list) and heads and all(_is_head(head, network.dims) for head in heads):
        network.set_alignment_heads(heads)
    return network


def _is_head(head: Any, dims: Any) -> bool:
    """Whether `head` is a layer of the decoder and one of its attention heads."""
    return (
        isinstance(head, list)
        and len(head) == 2
        and all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in head)
        and head[0] < dims.n_text_layer
        and head[1] < dims.n_text_head
    )
