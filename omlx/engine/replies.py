"""Replies: sampled tokens become text and end where a limit, a stop string, a grammar or the model says so.

An error in the host work of one row ends that row alone.
"""

from __future__ import annotations

import time

from omlx.engine.batch import Pending
from omlx.engine.detokenize import TokenTexts
from omlx.engine.grammar_text import GrammarError
from omlx.engine.logprobs import LogprobCollector
from omlx.engine.requests import Requests, unusable
from omlx.engine.sequence import Output, Sequence
from omlx.engine.tensors import read
from omlx.messages.request import FinishReason


class Replies:
    """The replies of all running sequences; `end_tokens` of the model end one."""

    def __init__(self, requests: Requests, texts: TokenTexts, end_tokens: set[int]) -> None:
        self.tokens = 0
        """Tokens handled so far, of all sequences."""
        self._requests = requests
        self._texts = texts
        self._end_tokens = end_tokens
        self._finished: list[Sequence] = []
        self._shifting: list[Sequence] = []

    @property
    def ended(self) -> int:
        """Sequences that ended since the last `take_finished`."""
        return len(self._finished)

    def take_finished(self) -> list[Sequence]:
        """The sequences that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_shifting(self) -> list[Sequence]:
        """Sequences whose context became full since the last call and whose replies continue."""
        shifting, self._shifting = [item for item in self._shifting if item.phase != "done"], []
        return shifting

    def handle(self, unread: list[Pending]) -> list[Output]:
        """Read samples and take their tokens into the sequences."""
        outputs: list[Output] = []
        for sample, sequences in unread:
            tokens: list[int] = read(sample.tokens)
            report = LogprobCollector(sample, self._texts) if sample.logprobs is not None else None
            now = time.monotonic_ns()
            for index, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
                if sequence is None or sequence.phase == "done":
                    continue
                try:
                    output = self._take(sequence, token, now)
                    if report is not None and sequence.wants_logprobs is not None:
                        output.logprobs = [report.of(index, token, sequence.wants_logprobs)]
                    outputs.append(output)
                except GrammarError as error:
                    self._requests.forget({sequence.id})
                    outputs.append(Output(id=sequence.id, failure=unusable(error)))
                except Exception as error:
                    outputs += self._requests.fail([sequence], error)
        return outputs

    def _take(self, sequence: Sequence, token: int, now: int) -> Output:
        """One more token of a sequence: its text, and whether it was the last."""
        sequence.accept(token, now)
        self.tokens += 1
        output = Output(id=sequence.id, tokens=[token])
        if token in self._end_tokens:
            return self.finish(sequence, output, "stop", now)
        output.text, output.stop_string = sequence.text.feed(token)
        if sequence.guide is not None:
            sequence.guide.accept(token, output.text)
        if output.stop_string or (sequence.guide is not None and sequence.guide.complete):
            return self.finish(sequence, output, "stop", now)
        if sequence.generated >= sequence.max_new:
            return self.finish(sequence, output, "length", now)
        if len(sequence.tokens) >= sequence.context:
            if not _may_shift(sequence):
                return self.finish(sequence, output, "length", now)
            self._shifting.append(sequence)
        return output

    def finish(self, sequence: Sequence, output: Output, reason: FinishReason, now: int) -> Output:
        """The last output of a sequence: `output` with the rest of its text."""
        output.text += sequence.text.flush()
        output.finish, output.usage = reason, sequence.usage(now)
        self._finished.append(sequence)
        sequence.phase = "done"
        return output


def _may_shift(sequence: Sequence) -> bool:
    limits = sequence.spec.limits
    return limits.shift and limits.num_predict != -2 and sequence.spec.media is None
