"""Forced calls may be written as the family's templates write them, which differ in line breaks, spaces and order."""

# ruff: noqa: E501  (what models write is kept on one line where it is one)
from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omlx.engine.grammar import GrammarCompiler
from omlx.messages.request import GenerateRequest
from omlx.prompting.constraint import constrain
from omlx.prompting.output import OutputParser, detect_output

END = "<|end_of_test|>"
PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}},
    "required": ["x"],
}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
JSON = '{"name": "f", "arguments": {"x": "v", "n": 3}}'
DSML = '<｜DSML｜{0}>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">v</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜{0}>'

# what the template says, the tokens of the vocabulary, what the model writes
FORMS: dict[str, tuple[str, list[str], str]] = {
    "GLM 4.5": ("<arg_key>", ["<tool_call>", "</tool_call>"], "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>v</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
    "GLM 4.7": ("<arg_key>", ["<tool_call>", "</tool_call>"], "<tool_call>f<arg_key>x</arg_key><arg_value>v</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"),
    "Ling": ("<arg_key>", [], "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>v</arg_value><arg_key>n</arg_key>\n<arg_value>3</arg_value></tool_call>"),
    "Mistral": ("[TOOL_CALLS]", ["[TOOL_CALLS]"], f"[TOOL_CALLS] [{JSON}]"),
    "Mistral Nemo": ("[TOOL_CALLS]", ["[TOOL_CALLS]"], f"[TOOL_CALLS][{JSON}]"),
    "Hunyuan": ("<tool_calls>", [], f"<tool_calls>\n[{JSON}]\n</tool_calls>"),
    "Jamba": ("<tool_calls>", [], f"<tool_calls>[{JSON}]</tool_calls>"),
    "MiniMax M1": ("<tool_calls>", [], f"<tool_calls>\n{JSON}\n</tool_calls>"),
    "DeepSeek V3.2": ("｜DSML｜ + 'function_calls>'", ["｜DSML｜"], DSML.format("function_calls")),
    "DeepSeek V4": ("｜DSML｜ + 'tool_calls>'", ["｜DSML｜"], DSML.format("tool_calls")),
    "Gemma 4, sorted": ("<|tool_call>", ["<|tool_call>", "<tool_call|>", '<|"|>'], '<|tool_call>call:f{n:3,x:<|"|>v<|"|>}<tool_call|>'),
}  # fmt: skip


def tokenizer_with(tokens: list[str]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: at for at, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in (END, *tokens)])
    return tokenizer


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_the_template_is_allowed_and_read(name: str) -> None:
    source, tokens, written = FORMS[name]
    tokenizer = tokenizer_with(tokens)
    dialect = detect_output(source, tokens, "")
    compiler = GrammarCompiler(tokenizer, tokenizer.get_vocab_size(), {tokenizer.token_to_id(END)})
    added = {token.content: at for at, token in tokenizer.get_added_tokens_decoder().items()}
    wanted = GenerateRequest(id=1, tools=TOOLS, think=False, must_call=True)
    grammar = constrain(wanted, dialect, added, opens_thinking=False)
    assert grammar is not None
    matcher = compiler.matcher(grammar)
    ids = tokenizer.encode(written, add_special_tokens=False).ids
    taken = matcher.try_consume_tokens(ids)
    assert taken == len(ids), tokenizer.decode(ids[:taken], skip_special_tokens=False)
    assert matcher.is_accepting()
    parser = OutputParser(dialect, tools=TOOLS)
    (segment,) = [*parser.feed(written), *parser.finish(ended=True)]
    assert segment.call is not None
    assert (segment.call.name, segment.call.arguments) == ("f", {"x": "v", "n": 3})
