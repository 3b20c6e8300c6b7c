"""Literals of Go's template language: the values of quoted strings, characters and numbers."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def unquote(body: str, mark: str) -> str | None:
    """The value of a Go string or character literal without its quotation marks; None: not valid."""
    data = bytearray()
    position = 0
    while position < len(body):
        if body[position] != "\\":
            if body[position] == mark or body[position] == "\n":
                return None
            data += body[position].encode("utf-8", "surrogatepass")
            position += 1
            continue
        match = _ESCAPE.match(body, position)
        if match is None:
            return None
        byte, short, long, octal, named = match.groups()
        if byte or octal:
            code = int(byte, 16) if byte else int(octal, 8)
            if code > 255:
                return None
            # A character literal's escape is a code point, a string's is a byte.
            data += chr(code).encode() if mark == "'" else bytes([code])
        elif short or long:
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                return None
            data += chr(code).encode()
        elif named in _NAMED or named == mark:
            data += _NAMED.get(named, named).encode()
        else:
            return None
        position = match.end()
    return data.decode("utf-8", "replace")


def parse_number(text: str) -> int | float | complex | None:
    """The value of a Go number literal; None: not a number."""
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    try:
        if digits.endswith("i"):
            return complex(0, sign * float(digits[:-1].replace("_", "")))
        lowered = digits.lower()
        if re.fullmatch(r"0x[0-9a-f_]+|0b[01_]+|0o[0-7_]+", lowered):
            return sign * int(lowered, 0)
        if lowered.startswith("0x") and "p" in lowered:
            return sign * float.fromhex(lowered.replace("_", ""))
        if re.fullmatch(r"0[0-7_]+", digits):
            return sign * int(digits.replace("_", ""), 8)
        if re.fullmatch(r"[0-9](?:_?[0-9])*", digits):
            return None if len(digits) > 400 or (digits[0] == "0" and digits != "0") else sign * int(digits)
        if re.fullmatch(r"[0-9_]*\.?[0-9_]*(?:e[+-]?[0-9_]+)?", lowered) and not digits.startswith("_"):
            return sign * float(digits)
    except (ValueError, OverflowError):
        return None
    return None
