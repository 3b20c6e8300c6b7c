"""Go's `fmt`: `print`, `println` and the verbs of `printf` that templates use, with Go's complaints in the output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from omlx.prompting.gotemplate.lexer import quote
from omlx.prompting.gotemplate.values import Struct, TypeNames, float_text, joined, to_text, type_name

MAX_WIDTH = 1_000_000
"""Go's own bound on width and precision."""

_INDEX = r"(\[[^\]]*\])?"
_VERB = re.compile(rf"%([-+# 0]*){_INDEX}(\d+|\*)?(\.{_INDEX}(\d+|\*)?)?{_INDEX}(.)?", re.DOTALL)


def sprint(values: Sequence[Any]) -> str:
    """`fmt.Sprint`: a space between two operands of which neither is a string."""

    def parts() -> Iterator[str]:
        for index, value in enumerate(values):
            if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
                yield " "
            yield to_text(value, top=False)

    return joined(parts())


def sprintln(values: Sequence[Any]) -> str:
    return joined((to_text(value, top=False) for value in values), " ") + "\n"


def sprintf(form: str, values: Sequence[Any]) -> str:
    """`fmt.Sprintf`."""
    return joined(_formatted_parts(form, values))


def _formatted_parts(form: str, values: Sequence[Any]) -> Iterator[str]:
    position = 0
    operands = _Operands(values)
    for match in _VERB.finditer(form):
        if match.start() < position:
            continue
        yield form[position : match.start()]
        position = match.end()
        flags, width_index, width, dot, precision_index, precision, verb_index, verb = match.groups()
        operands.good = True
        sizes: list[int | None] = []
        for index, size, complaint in (
            (width_index, width, "%!(BADWIDTH)"),
            (precision_index, precision, "%!(BADPREC)"),
        ):
            if index:
                # "%[3]2d": an index belongs to a verb or to a star.
                operands.select(index, last=size is not None and size != "*")
            number: int | None = None
            if size == "*":
                star = operands.take()
                number = star if isinstance(star, int) and not isinstance(star, bool) else None
                if number is None or abs(number) > MAX_WIDTH:
                    yield complaint
                    number = None
            elif size:
                number = int(size) if len(size) < 8 and int(size) <= MAX_WIDTH else None
                if number is None:
                    yield complaint
            sizes.append(number)
        if dot and precision is None:
            sizes[1] = 0
        if verb_index:
            operands.select(verb_index)
        if verb is None:
            yield "%!(NOVERB)"
        elif verb == "%":
            yield "%"
        elif not operands.good:
            yield f"%!{verb}(BADINDEX)"
        elif operands.next >= len(values):
            yield f"%!{verb}(MISSING)"
        else:
            yield _formatted(operands.take(), verb, flags, sizes[0], sizes[1])
    yield form[position:]
    if not operands.reordered and operands.next < len(values):
        rest = values[operands.next :]
        shown = ("<nil>" if value is None else f"{type_name(value)}={to_text(value, top=False)}" for value in rest)
        yield f"%!(EXTRA {joined(shown, ', ')})"


class _Operands:
    """The operands of a format, taken in their order or by an index such as `[2]`."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self.next = 0
        self.good = True
        """The indices of the present verb name an operand."""
        self.reordered = False

    def take(self) -> Any:
        value = self._values[self.next] if self.next < len(self._values) else None
        self.next += 1
        return value

    def select(self, index: str, *, last: bool = False) -> None:
        """Go on at the operand `index` names. `last`: nothing may stand between index and verb."""
        self.reordered = True
        digits = index[1:-1]
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 8 else 0
        if last or not 1 <= number <= len(self._values):
            self.good = False
        else:
            self.next = number - 1


def _formatted(value: Any, verb: str, flags: str, width: int | None, precision: int | None) -> str:
    if width is not None and width < 0:
        flags, width = flags + "-", -width
    text, numeric = _verb(value, verb, flags, precision)
    if width is None or len(text) >= width:
        return text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and numeric:
        sign = text[0] if text[:1] in {"-", "+", " "} else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


def _verb(value: Any, verb: str, flags: str, precision: int | None) -> tuple[str, bool]:
    """The text of one operand, and whether zeros may pad it."""
    if verb == "T":
        return type_name(value), False
    if verb == "v" and "#" in flags:
        return _literal(value), False
    if verb == "v" and "+" in flags:
        if isinstance(value, Struct) and not value.prints_json:
            named = (f"{name}:{_verb(field, verb, flags, precision)[0]}" for name, field in value.fields.items())
            return "{" + joined(named, " ") + "}", False
        # Of anything but a struct's fields `+` says nothing here.
        numeric = isinstance(value, int | float)
        if not isinstance(value, list | dict):
            return to_text(value, top=False), numeric
    if isinstance(value, list | dict) and not isinstance(value, TypeNames) and not getattr(value, "prints_json", False):
        return _compound(value, verb, flags, precision), False
    if verb == "v":
        return _signed(value, flags, to_text(value, top=False)), isinstance(value, int | float)
    if value is not None:
        known = _known(value, verb, flags, precision)
        if known is not None:
            return known
    shown = "<nil>" if value is None else f"{type_name(value)}={to_text(value, top=False)}"
    return f"%!{verb}({shown})", False


def _known(value: Any, verb: str, flags: str, precision: int | None) -> tuple[str, bool] | None:
    if isinstance(value, bool):
        return (to_text(value), False) if verb == "t" else None
    if isinstance(value, int):
        return _integer(value, verb, flags)
    if isinstance(value, float):
        return _float(value, verb, flags, precision)
    stringer = isinstance(value, TypeNames) or getattr(value, "prints_json", False)
    if isinstance(value, Struct) and not stringer:
        fields = (_verb(field, verb, flags, precision)[0] for field in value.fields.values())
        return "{" + joined(fields, " ") + "}", False
    if not isinstance(value, str) and not stringer:
        return None
    text = to_text(value)
    cut = text if precision is None else text[:precision]
    match verb:
        case "s":
            return cut, False
        case "q":
            return (f"`{cut}`" if "#" in flags and "`" not in cut and cut.isprintable() else quote(cut)), False
        case "x" | "X":
            encoded = (text.encode() if precision is None else text.encode()[:precision]).hex()
            return (encoded if verb == "x" else encoded.upper()), False
    return None


def _signed(value: Any, flags: str, text: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and not text.startswith(("-", "+")):
        return ("+" if "+" in flags else " " if " " in flags else "") + text
    return text


def _integer(value: int, verb: str, flags: str) -> tuple[str, bool] | None:
    form = {"d": "d", "b": "b", "o": "o", "x": "x", "X": "X"}.get(verb)
    if form:
        digits = format(abs(value), form)
        if "#" in flags:
            digits = {"x": "0x", "X": "0X", "b": "0b", "o": "0"}.get(verb, "") + digits
        return _signed(value, flags, ("-" if value < 0 else "") + digits), True
    if verb in {"c", "q", "U"}:
        char = chr(value) if 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else "\ufffd"
        if verb == "U":
            return f"U+{value & 0xFFFFFFFFFFFFFFFF:04X}", False
        return (char if verb == "c" else "'" + _quoted_char(char) + "'"), False
    if verb in {"e", "E", "f", "F", "g", "G"}:
        return None
    return None


def _quoted_char(char: str) -> str:
    return "\\'" if char == "'" else char if char == '"' else quote(char)[1:-1]


def _float(value: float, verb: str, flags: str, precision: int | None) -> tuple[str, bool] | None:
    if verb not in {"e", "E", "f", "F", "g", "G"}:
        return None
    if value != value or value in {float("inf"), float("-inf")}:
        return float_text(value), False
    if verb in {"g", "G"} and precision is None:
        text = float_text(value)
        return _signed(value, flags, text.upper() if verb == "G" else text), True
    # Python would allocate what a precision of a million says; so does Go.
    text = format(value, f".{6 if precision is None else precision}{verb}")
    return _signed(value, flags, text), True


def _compound(value: Any, verb: str, flags: str, precision: int | None) -> str:
    if isinstance(value, dict):
        items = (
            f"{_verb(key, verb, flags, precision)[0]}:{_verb(item, verb, flags, precision)[0]}"
            for key, item in sorted(value.items())
        )
        return "map[" + joined(items, " ") + "]"
    return "[" + joined((_verb(item, verb, flags, precision)[0] for item in value), " ") + "]"


def _literal(value: Any) -> str:
    """`%#v`."""
    match value:
        case str():
            return quote(value)
        case list():
            return type_name(value) + "{" + ", ".join(map(_literal, value)) + "}"
        case dict():
            items = ", ".join(f"{quote(key)}:{_literal(item)}" for key, item in sorted(value.items()))
            return type_name(value) + "{" + items + "}"
    return to_text(value, top=False)
