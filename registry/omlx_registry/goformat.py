"""Values as Go prints them: clients read `parameters` and `modelfile` of `show` line by line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ESCAPES: Final = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
                   "\\": "\\\\", '"': '\\"'}  # fmt: skip
_NAME_COLUMNS: Final = 30


def print_parameters(parameters: Mapping[str, Any]) -> str:
    """One line per value: the name in 30 columns, a blank, the value; strings quoted. No newline at the end."""
    return "\n".join(
        f"{name:<{_NAME_COLUMNS}} {go_syntax(item)}"
        for name, value in parameters.items()
        for item in (value if isinstance(value, list) else [value])
    )


def go_syntax(value: Any) -> str:
    """Go's `%#v` of a decoded JSON value: strings in double quotes with escapes, objects and arrays with types."""
    if isinstance(value, str):
        return go_quote(value)
    if isinstance(value, dict):
        inner = ", ".join(f"{go_quote(name)}:{_go_syntax_inside(item)}" for name, item in sorted(value.items()))
        return f"map[string]interface {{}}{{{inner}}}"
    if isinstance(value, list):
        return f"[]interface {{}}{{{', '.join(map(_go_syntax_inside, value))}}}"
    return go_text(value)


def _go_syntax_inside(value: Any) -> str:
    return "interface {}(nil)" if value is None else go_syntax(value)


def go_text(value: Any) -> str:
    """Go's `%v` of a decoded JSON value; every JSON number is a float64 there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return go_float(float(value))
    if value is None:
        return "<nil>"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{name}:{go_text(item)}' for name, item in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    return str(value)


def go_float(value: float) -> str:
    """Go's `%g` with the fewest digits that read back the same: 4096, 0.7, 1e+06 (exponent from one million up)."""
    if value != value:
        return "NaN"
    if value in {float("inf"), float("-inf")}:
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if str(value).startswith("-") else "0"
    for digits in range(17):
        mantissa, _, exponent_text = f"{value:.{digits}e}".partition("e")
        if float(f"{mantissa}e{exponent_text}") == value:
            break
    exponent = int(exponent_text)
    if -4 <= exponent < 6:
        return f"{value:.{max(0, len(mantissa.lstrip('-').replace('.', '')) - 1 - exponent)}f}"
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def go_quote(text: str) -> str:
    """A Go string literal: printable characters as they are, others as \\n, \\x07, \\u200b, \\U0001f9ff."""
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
