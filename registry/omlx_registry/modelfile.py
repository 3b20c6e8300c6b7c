"""Modelfiles: the text from which a model is made. Parser, printer and the meaning of each instruction. Pure.

Line form `INSTRUCTION value`, `#` comments, values plain to the end of the line or in `"…"` or `\"\"\"…\"\"\"` over
several lines, no escapes. A quoted value ends at the first line end at which its text ends with the closing quote:
quotes inside a line are part of the value. Control characters are dropped, but for line ends and tabs.

Deviations from Ollama, both on purpose: invisible characters that are no controls (zero-width joiner, no-break space)
are kept, since dropping them damages emoji and text; an instruction with nothing behind it is always `unexpected EOF`.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

import msgspec

from omlx_registry.errors import ModelfileError
from omlx_registry.options import DEPRECATED, OPTIONS

COMMANDS: Final = (
    "from", "license", "template", "system", "adapter", "draft", "renderer", "parser", "parameter", "message",
    "requires",
)  # fmt: skip
ROLES: Final = ("system", "user", "assistant")
UNEXPECTED_END: Final = "unexpected EOF"

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE
)
SEMVER: Final = re.compile(
    r"v?(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)?)?", re.ASCII
)
_DURATION: Final = re.compile(r"[+-]?(?:[0-9]+|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)")
"""Of `keep_alive`, which oMLX alone has: a Go duration, or whole seconds."""
_BACKENDS: Final = ("off", "ring", "jaccl", "mpi", "nccl")
"""Of `distributed`, which oMLX alone has, too."""
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LINE_END: Final = re.compile(r"[\r\n]|\Z")
_CLOSING: Final = re.compile(r'"""(?=[^\S\r\n]*[\r\n])')
"""Three quote marks that end a line: they would end a value."""
_BLANKS: Final = " \t"


class Instruction(msgspec.Struct, frozen=True):
    """One instruction. `key` is the name of a PARAMETER or the role of a MESSAGE."""

    name: str
    """Lower case, one of COMMANDS."""
    value: str
    key: str = ""


class Modelfile(msgspec.Struct, frozen=True):
    """A parsed Modelfile: its instructions in order; `str()` prints it so that it parses to the same."""

    commands: list[Instruction]

    def values(self, name: str) -> list[str]:
        return [command.value for command in self.commands if command.name == name]

    def last(self, name: str) -> str | None:
        values = self.values(name)
        return values[-1] if values else None

    def __str__(self) -> str:
        return print_commands(self.commands)


class Meaning(msgspec.Struct, frozen=True):
    """What a Modelfile asks for, typed. Paths are still as written: only the client can read them."""

    bases: list[str]
    """Every FROM value: model names and paths."""
    adapter: str | None = None
    drafts: list[str] = []
    template: str | None = None
    system: str | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    licenses: list[str] = []
    parameters: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    warnings: list[str] = []


def parse_modelfile(source: str | bytes) -> Modelfile:
    """Raises ModelfileError with Ollama's texts."""
    commands = list(
        _Scanner(decode_text(source) if isinstance(source, bytes) else source.removeprefix("\ufeff")).commands()
    )
    if not any(command.name == "from" for command in commands):
        raise ModelfileError("no FROM line")
    return Modelfile(commands)


def decode_text(data: bytes) -> str:
    """UTF-8, or what a byte-order mark says (UTF-16 too); wrong bytes become U+FFFD."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, errors="replace")
    return data.decode("utf-8", errors="replace")


def interpret(modelfile: Modelfile) -> Meaning:
    """The typed meaning of the instructions. Raises ModelfileError for a wrong parameter or version."""
    requires = modelfile.last("requires")
    if requires is not None and not SEMVER.fullmatch(requires):
        raise ModelfileError("requires must be a valid semver (e.g. 0.14.0)")
    if len(modelfile.values("adapter")) > 1:
        raise ModelfileError("only one ADAPTER is supported: merge the adapters into one first")
    parameters: dict[str, Any] = {}
    warnings = []
    for command in modelfile.commands:
        if command.name != "parameter":
            continue
        if command.key in DEPRECATED:
            warnings.append(f"warning: parameter {command.key} is deprecated")
            continue
        value = parse_parameter(command.key, command.value)
        if command.key == "stop":
            parameters.setdefault("stop", []).append(value)
        else:
            parameters[command.key] = value
    return Meaning(
        bases=modelfile.values("from"),
        adapter=modelfile.last("adapter"),
        drafts=modelfile.values("draft"),
        template=modelfile.last("template"),
        system=modelfile.last("system"),
        renderer=modelfile.last("renderer"),
        parser=modelfile.last("parser"),
        requires=None if requires is None else requires.removeprefix("v"),
        licenses=modelfile.values("license"),
        parameters=parameters,
        messages=[{"role": it.key, "content": it.value} for it in modelfile.commands if it.name == "message"],
        warnings=list(dict.fromkeys(warnings)),
    )


def parse_parameter(name: str, text: str) -> int | float | bool | str:
    """The typed value of a PARAMETER. Raises ModelfileError (`unknown parameter 'x'`, `invalid int value [x]`)."""
    option = OPTIONS.get(name)
    kind = option.type if option is not None and option.parameter else ""
    if kind == "int":
        if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise ModelfileError(f"invalid int value [{text}]")
        return int(text)
    if kind == "float":
        # No answer of the API can hold an infinity or NaN.
        if not _FLOAT.fullmatch(text) or not isfinite(float(text)):
            raise ModelfileError(f"invalid float value [{text}]")
        return float(text)
    if kind == "bool":
        if text not in _TRUE | _FALSE:
            raise ModelfileError(f"invalid bool value [{text}]")
        return text in _TRUE
    if name == "keep_alive":
        if not _DURATION.fullmatch(text):
            raise ModelfileError(f"invalid duration value [{text}]")
        return text
    if name == "distributed":
        check_backend(text)
        return text
    if kind == "strings":
        return text
    raise ModelfileError(f"unknown parameter '{name}'")


def is_newer(requires: str, version: str) -> bool:
    """Whether a REQUIRES (valid, or "") asks for a later Ollama version than `version`; "" is any."""
    return bool(version) and _numbers(requires) > _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[-+]", version, maxsplit=1)[0])[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))


def check_backend(value: object) -> None:
    """Raises ModelfileError where this is no value of the parameter `distributed`."""
    if value not in _BACKENDS:
        raise ModelfileError(f"invalid value [{value}] of parameter distributed, must be one of {', '.join(_BACKENDS)}")


def print_commands(commands: Iterable[Instruction]) -> str:
    """The instructions as text, one after the other, each with its line end."""
    return "".join(f"{_head(command)} {quote(command.value)}\n" for command in commands)


def quote(value: str) -> str:
    """The value as it stands in a Modelfile: plain where that reads back the same, else in quotes.

    Text with a line that ends in three quote marks, or with control characters, has no exact form: it is printed in
    triple quotes all the same, with a blank in such marks, so that what follows them is never read as an instruction.
    """
    plain, single, triple = value, f'"{value}"', f'"""{value}"""'
    usual = (triple if '"' in value else single) if "\n" in value or value != value.strip(" ") else plain
    safe = '"""' + _CLOSING.sub('"" "', value) + '"""'
    return next((form for form in (usual, plain, single, triple) if _reads_back(form, value)), safe)


def _head(command: Instruction) -> str:
    return f"{command.name.upper()} {command.key}" if command.key else command.name.upper()


def _reads_back(form: str, value: str) -> bool:
    try:
        read, end = _read_value(f"{form}\n", 0)
    except ModelfileError:
        return False
    return read == value and end == len(form)


def _read_value(text: str, start: int) -> tuple[str, int]:
    """The value that begins at `start` (blanks in front allowed) and the position of the line end that closes it."""
    for line_end in _LINE_END.finditer(text, start):
        raw = text[start : line_end.start()].strip()
        for mark in ('"""', '"'):
            if raw.startswith(mark):
                if len(raw) >= 2 * len(mark) and raw.endswith(mark):
                    return _printable(raw[len(mark) : -len(mark)]), line_end.start()
                break
        else:
            if not raw:
                break
            return _printable(raw), line_end.start()
    raise ModelfileError(UNEXPECTED_END)


def _printable(text: str) -> str:
    return "".join(character for character in text if character in "\t\n\r" or unicodedata.category(character) != "Cc")


class _Scanner:
    """Walks through the text of a Modelfile, instruction by instruction."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def commands(self) -> Iterable[Instruction]:
        while self._skip_to_instruction():
            yield self._command()

    def _skip_to_instruction(self) -> bool:
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "#":
                end = _LINE_END.search(self._text, self._at)
                self._at = end.start() if end else len(self._text)
            elif character in " \t\r\n":
                self._at += 1
            else:
                return True
        return False

    def _command(self) -> Instruction:
        start = self._at
        name = self._word(r"[A-Za-z]+").lower()
        known = name in COMMANDS
        if self._at >= len(self._text) and known:
            raise ModelfileError(UNEXPECTED_END)
        if not known or self._text[self._at] not in f"{_BLANKS}\r\n":
            listed = ", ".join(f'"{it}"' for it in COMMANDS[:-1])
            raise ModelfileError(f'command must be one of {listed}, or "{COMMANDS[-1]}"', self._line(start))
        key = ""
        if name in {"parameter", "message"}:
            key = self._key(r"[A-Za-z0-9_]+" if name == "parameter" else r"[A-Za-z]+")
            if name == "message" and key not in ROLES:
                raise ModelfileError('message role must be one of "system", "user", or "assistant"', self._line(start))
        value, self._at = _read_value(self._text, self._at)
        return Instruction(name, value, key)

    def _key(self, pattern: str) -> str:
        """The word after PARAMETER or MESSAGE; a value must follow on the same line."""
        self._word(f"[{_BLANKS}]+")
        key = self._word(pattern)
        if not key or self._at >= len(self._text) or self._text[self._at] not in _BLANKS:
            raise ModelfileError(UNEXPECTED_END)
        return key

    def _word(self, pattern: str) -> str:
        match = re.compile(pattern).match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1
