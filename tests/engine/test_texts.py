"""Texts without quotes that a grammar holds to a JSON schema: arguments of tools in families that write elements."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from omlx.engine.schemas.texts import anchored
from omlx.messages.constraint import Grammar, TextTerminal
from tests.engine.test_schemas import COMPILER, SIZE, STOP, TOKENIZER

END = "</p>"

SCHEMAS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    # name: schema, texts that can be written, texts that cannot
    "any": ({"type": "string"}, ["", "a\nb", "<p>", "</p"], []),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é\n<"], ["a", "abcd"]),
    "no more than": ({"type": "string", "maxLength": 20_000}, ["", "a" * 50], []),
    "a pattern of the whole": ({"type": "string", "pattern": "^[a-z]+/[0-9]{2}$"}, ["a/12"], ["a/1", "xa/123", "A/12"]),
    "a pattern anywhere": ({"type": "string", "pattern": "b+"}, ["abc", "b"], ["", "ac"]),
    "a pattern at the start": ({"type": "string", "pattern": "^b"}, ["b", "bc\nd"], ["ab"]),
    "alternatives": ({"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
    "pattern and length": ({"pattern": "^[ab]*$", "maxLength": 2}, ["ab", ""], ["c", "aba"]),
    "a pattern that must not be": ({"type": "string", "pattern": "^(?!no$).*$"}, ["yes", "nob"], ["no"]),
    "enum": ({"enum": ["x", "y z"]}, ["x", "y z"], ["z"]),
    "const": ({"const": 'q"'}, ['q"'], ["q"]),
    "a text or nothing": ({"type": ["string", "null"], "pattern": "^a$"}, ["a", "null"], ["b"]),
    "one or the other": ({"anyOf": [{"type": "string", "maxLength": 1}, {"enum": ["long"]}]}, ["a", "long"], ["lon"]),
    "both": ({"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^a"}]}, ["ab"], ["a", "bc"]),
    "a date": ({"type": "string", "format": "date"}, ["2024-02-28", "1999-12-31"], ["2024-02-30", "2024-13-01", "x"]),
    "a time": ({"type": "string", "format": "date-time"}, ["2024-02-28T10:00:00Z"], ["2024-02-28", "2024-02-28T25"]),
    "an address": ({"type": "string", "format": "ipv4"}, ["10.0.0.255"], ["10.0.0.256", "10.0.0"]),
    "a longer address": ({"type": "string", "format": "ipv6"}, ["::1", "::", "fe80::1:2", "1:2:3:4:5:6:7:8"], ["1:2"]),
    "mail": ({"type": "string", "format": "email"}, ["a.b@c.org"], ["a.b", "@c.org"]),
    "a format nobody knows": ({"type": "string", "format": "shoe-size"}, ["x"], []),
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "minLength": 2}}}, ["ab"], ["a"]),
    "or a number: free": ({"type": ["string", "integer"], "pattern": "^a"}, ["3", "a"], []),
}  # fmt: skip


def grammar(schema: dict[str, Any]) -> Grammar:
    source = f'start: "<p>" r0 "!"\nr0[suffix="{END}"]: T0'
    return Grammar("lark", source, texts={"T0": TextTerminal(schema, END)}, trusted=True)


def takes(schema: dict[str, Any], text: str) -> bool:
    state = COMPILER.matcher(grammar(schema))
    tokens = TOKENIZER.encode(f"<p>{text}{END}!").ids
    return bool(state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting())


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_that_obey_can_be_written_and_others_cannot(name: str) -> None:
    schema, right, wrong = SCHEMAS[name]
    for text in right:
        assert takes(schema, text), text
    for text in wrong:
        assert not takes(schema, text), text


@pytest.mark.parametrize("name", ["lengths", "a date", "a time", "an address", "a longer address", "mail", "both"])
def test_whatever_is_written_obeys(name: str) -> None:
    schema = SCHEMAS[name][0]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    closing = {*TOKENIZER.encode(END + "!").ids}
    for seed in range(5):
        chance = random.Random(seed)
        state, tokens, bits = COMPILER.matcher(grammar(schema)), [], np.zeros(COMPILER.words, np.uint32)
        while True:
            state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            allowed = [token for token in range(SIZE) if bits[token // 32] >> np.uint32(token % 32) & np.uint32(1)]
            assert allowed, TOKENIZER.decode(tokens)
            if STOP in allowed:
                break
            ending = [token for token in allowed if token in closing]
            tokens.append(chance.choice(ending if ending and chance.random() < 0.8 else allowed))
            assert len(tokens) < 3000
            state.consume_token(tokens[-1])
        text = TOKENIZER.decode(tokens).removeprefix("<p>").removesuffix(END + "!")
        assert END not in text
        validator.validate(text)


@pytest.mark.parametrize("pattern", ["(^a|b)$", "a$b", "x(^)"])
def test_a_pattern_with_an_anchor_within_is_left_out(pattern: str) -> None:
    assert anchored(pattern) is None
