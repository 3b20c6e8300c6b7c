"""What a request that asks for log probabilities is told of each of its tokens."""

from __future__ import annotations

from omlx.engine.detokenize import TokenTexts
from omlx.engine.sampling import Sample
from omlx.engine.tensors import read
from omlx.messages.request import TokenLogprob


class LogprobCollector:
    """The log probabilities of one sample, read once for all rows."""

    def __init__(self, sample: Sample, texts: TokenTexts) -> None:
        assert sample.logprobs is not None
        self._texts = texts
        self._chosen: list[float] = read(sample.logprobs)
        self._ids: list[list[int]] = read(sample.top_tokens) if sample.top_tokens is not None else []
        self._values: list[list[float]] = read(sample.top_logprobs) if sample.top_logprobs is not None else []

    def of(self, row: int, token: int, alternatives: int) -> TokenLogprob:
        chosen = self._entry(token, self._chosen[row])
        if alternatives and self._ids:
            pairs = zip(self._ids[row][:alternatives], self._values[row][:alternatives], strict=True)
            chosen.top = [self._entry(*pair) for pair in pairs]
        return chosen

    def _entry(self, token: int, logprob: float) -> TokenLogprob:
        text, raw = self._texts[token]
        return TokenLogprob(token=text, logprob=logprob, bytes=raw)
