"""Writes grammars (`grammar_text`) in separate processes with limits (see `omlx.engine.decoder_process`).

What llguidance compiled cannot be passed between processes. So a process first checks whether a grammar can be
compiled within the limits, and only then is it compiled in the runner, where nothing could end it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from omlx.engine.decoder_process import DecoderDied, DecoderPool, TooSlow, serve
from omlx.engine.grammar_text import TOO_DEEP, GrammarError, sentence, write
from omlx.engine.panics import ends_only_its_request
from omlx.messages.constraint import Grammar

MAX_SECONDS: Final = 4.0
"""CPU time of one grammar. Ordinary ones need milliseconds, those of thousands of properties a second."""
_MEMORY_BYTES: Final = 384 << 20
"""Of a process, 30 MB of it before its first grammar. The largest grammars within llguidance's limits take 120 MB."""
_TOO_MUCH: Final = "compiling it takes too much memory; simplify it"


class _Grammar(msgspec.Struct):
    grammar: Grammar


class _Written(msgspec.Struct, tag=True):
    text: str


class _RefusedGrammar(msgspec.Struct, tag=True):
    message: str


# ---------------------------------------------------------------- the runner's side
_pool = DecoderPool("omlx.engine.grammar_process", _MEMORY_BYTES)


def written(grammar: Grammar, check: Callable[[], None] = lambda: None) -> str:
    """The grammar for llguidance, which compiles it within the limits. Raises GrammarError.

    `check` is called regularly; it may raise to give up.
    """
    try:
        order = msgspec.msgpack.encode(_Grammar(grammar))
        with _pool.process() as process:
            answer = msgspec.msgpack.decode(process.ask(order, MAX_SECONDS, check), type=_Written | _RefusedGrammar)
    except TooSlow:
        raise GrammarError(f"compiling it takes longer than {MAX_SECONDS:g} seconds; simplify it") from None
    except RecursionError:
        raise GrammarError(TOO_DEEP) from None
    except (DecoderDied, msgspec.MsgspecError) as error:
        raise GrammarError(_TOO_MUCH) from error
    if isinstance(answer, _Written):
        return answer.text
    raise GrammarError(answer.message)


# ---------------------------------------------------------------- the process
def _answers(order: bytearray) -> Iterator[bytes]:
    try:
        answer: _Written | _RefusedGrammar = _Written(write(msgspec.msgpack.decode(order, type=_Grammar).grammar))
    except GrammarError as error:
        answer = _RefusedGrammar(str(error))
    except RecursionError:
        answer = _RefusedGrammar(TOO_DEEP)
    except MemoryError:
        answer = _RefusedGrammar(_TOO_MUCH)
    except BaseException as error:  # llguidance raises several kinds, a panic among them
        if not ends_only_its_request(error):
            raise
        answer = _RefusedGrammar(sentence(str(error)))
    yield msgspec.msgpack.encode(answer)


if __name__ == "__main__":
    serve(_answers, _MEMORY_BYTES)
