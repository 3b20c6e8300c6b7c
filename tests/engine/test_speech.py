"""Transcriptions in steps are word for word those that mlx-audio makes in one call, from both layouts of Whisper."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
from mlx_audio.stt.models.whisper.audio import N_FRAMES, N_SAMPLES, log_mel_spectrogram
from mlx_audio.stt.models.whisper.whisper import Model, ModelDimensions
from transformers import WhisperTokenizer

from omlx.engine.speech import mel as mel_module
from omlx.engine.speech.mel import MelSpectrogram
from omlx.engine.speech.network import LoadedSpeech, language_code, load_speech
from omlx.engine.speech.transcription import SpeechOptions, Step, Transcription, temperatures
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.support.tiny_whisper import make_whisper, sound

SEEN = ("seek", "start", "end", "text", "tokens", "temperature")
MEASURED = ("avg_logprob", "compression_ratio", "no_speech_prob")


def opened(folder: Path, weights: str = "auto") -> LoadedSpeech:
    spec = LoadSpec(
        name="tiny", path=str(folder), fingerprint="x", weights=weights, engine=EngineConfig(context_length=448)
    )
    return load_speech(spec, lambda done, total: None)


def reference(folder: Path, dtype: Any) -> Any:
    """mlx-audio's own model, loaded as it loads them."""
    config = json.loads((folder / "config.json").read_text())
    model = Model(ModelDimensions.from_dict(config), dtype)
    model.load_weights(list(model.sanitize(mx.load(str(folder / "model.safetensors"))).items()))
    heads = json.loads((folder / "generation_config.json").read_text())["alignment_heads"]
    model.set_alignment_heads(heads)
    model._processor = SimpleNamespace(tokenizer=WhisperTokenizer.from_pretrained(folder))
    return model


def check_same(steps: list[Step], made: Transcription, expected: Any) -> None:
    segments = [segment for step in steps for segment in step.segments]
    assert made.text == expected.text == "".join(step.text for step in steps)
    assert made.language == expected.language
    assert [{key: getattr(it, key) for key in SEEN} for it in segments] == [
        {key: it[key] for key in SEEN} for it in expected.segments
    ]
    for key in MEASURED:
        ours, theirs = ([float(value(it)) for it in found] for found, value in (
            (segments, lambda it, key=key: getattr(it, key)), (expected.segments, lambda it, key=key: it[key]),
        ))  # fmt: skip
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    assert [it.id for it in segments] == list(range(len(segments)))


@pytest.mark.parametrize(
    ("layout", "sure", "multilingual", "weights", "options"),
    [
        ("mlx", True, False, "auto", {"word_timestamps": True}),
        ("mlx", False, True, "float16", {}),
        ("huggingface", True, True, "auto", {"initial_prompt": "Hello w7."}),
        ("huggingface", False, True, "auto", {"language": "de", "task": "translate", "temperature": (0.8, 1.0)}),
    ],
)
def test_a_transcription_is_that_of_the_library(
    tmp_path: Path, layout: Any, sure: bool, multilingual: bool, weights: str, options: dict[str, Any]
) -> None:
    folder = make_whisper(tmp_path, layout, sure=sure, multilingual=multilingual)
    seconds = 34 if sure else 6  # each temperature takes its time
    samples = sound(seconds)
    loaded = opened(folder, weights)
    made = Transcription(
        loaded.network,
        samples,
        SpeechOptions(
            task=options.get("task", "transcribe"),
            language=options.get("language", ""),
            prompt=options.get("initial_prompt", ""),
            temperature=options.get("temperature", (0.0,))[0],
            words=options.get("word_timestamps", False),
            seed=3,
        ),
    )
    steps = []
    for step in made.steps():
        steps.append(step)
        mx.random.normal((4,))  # other files draw random numbers meanwhile
    dtype = mx.float16 if weights == "float16" else mx.float32
    library = reference(folder, dtype)
    mx.random.seed(3)
    expected = library.generate(samples, fp16=dtype == mx.float16, **options)
    check_same(steps, made, expected)
    assert made.text.strip()
    tried = {it["temperature"] for it in expected.segments}
    assert all(value == 0.0 for value in tried) if sure else max(tried) > 0.5
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == 100 * seconds
    if "word_timestamps" in options:
        ours = [[vars_of(word) for word in it.words] for step in steps for it in step.segments]
        assert ours == [it["words"] for it in expected.segments]
        assert any(ours)


def vars_of(word: Any) -> dict[str, Any]:
    return {name: getattr(word, name) for name in ("word", "start", "end", "probability")}


@pytest.mark.parametrize("seconds", [0.005, 1.0, 33.337])
def test_a_window_of_the_spectrogram_is_a_part_of_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(mel_module, "_SCANNED_FRAMES", 700)
    samples = sound(seconds)
    whole = log_mel_spectrogram(samples, n_mels=80, padding=N_SAMPLES)
    ours = MelSpectrogram(samples, 80)
    assert ours.frames == whole.shape[0] - N_FRAMES
    assert list(ours.scan())[-1] == ours.frames
    for start, count in ((0, 3000), (0, min(3000, ours.frames)), (123, min(500, ours.frames))):
        if count > 0:
            window = np.asarray(ours.window(start, count))
            assert window.shape == (3000, 80)
            np.testing.assert_allclose(window[:count], np.asarray(whole[start : start + count]), atol=1e-5)
            assert not window[count:].any()


def test_temperatures_go_up_to_one() -> None:
    assert temperatures(0.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert temperatures(0.7) == [0.7, 0.9]
    assert temperatures(1.0) == [1.0]


@pytest.mark.parametrize(
    ("given", "code"), [("German", "de"), ("de", "de"), ("de-DE", "de"), ("en_US", "en"), ("", ""), ("xx", "xx")]
)
def test_a_language_is_known_by_code_and_name(given: str, code: str) -> None:
    assert language_code(given) == code


def changed(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"n_text_ctx": 4000}, "does not match the weights: it states 4,000 text positions"),
        ({"n_text_ctx": 10**9}, "n_text_ctx of a Whisper model must be a number from 1 to 4,096"),
        ({"n_audio_ctx": 750}, "needs 1500 audio positions, not 750"),
        ({"n_audio_layer": None}, "n_audio_layer of a Whisper model must be a number"),
        ({"n_text_head": 3}, "cannot be divided over 3 heads"),
        ({"n_audio_layer": 2}, "Missing"),
    ],
)
def test_a_configuration_that_is_not_that_of_the_weights_is_refused(
    tmp_path: Path, values: dict[str, Any], sentence: str
) -> None:
    folder = make_whisper(tmp_path, multilingual=False)
    changed(folder, "config.json", **values)
    with pytest.raises(LoadError, match=sentence):
        opened(folder)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = make_whisper(tmp_path / "small", multilingual=False)
    other = make_whisper(tmp_path / "large", multilingual=True)
    (folder / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes())
    with pytest.raises(LoadError, match="its tokenizer does not match the network"):
        opened(folder)
    text = (folder / "tokenizer.json").read_text().replace("<|startofprev|>", "<|other|>")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(LoadError, match=r"it has no <\|startofprev\|>"):
        opened(folder)
