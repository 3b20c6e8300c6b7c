"""*Tokens* of a Go template: the literal text between actions, and what stands inside `{{ … }}`.

Errors are Go's own sentences, since Modelfile authors search the web for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

KEYWORDS = frozenset({"block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"})


class Token(NamedTuple):
    """`kind` is one of: text, left, right, space, field, variable, name, keyword, bool, nil, dot, number, string, char,
    pipe, comma, assign, declare, open, close, error, eof."""

    kind: str
    text: str
    line: int

    def describe(self) -> str:
        """The token as Go names it in "unexpected … in …"."""
        if self.kind == "eof":
            return "EOF"
        if self.kind in {"keyword", "dot", "nil"}:
            return f"<{self.text}>"
        return f"{quote(self.text[:10])}..." if len(self.text) > 10 else quote(self.text)


def quote(text: str) -> str:
    """A string as a Go literal (`%q`)."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b",
               "\f": "\\f", "\v": "\\v"}  # fmt: skip
    return '"' + "".join(escapes.get(char) or (char if char.isprintable() else _escape(char)) for char in text) + '"'


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_SPACE = " \t\r\n"
_COMMENT = re.compile(r"(?:-[ \t\r\n])?[ \t\r\n]*/\*")
_TRIM_LEFT = re.compile(r"-[ \t\r\n]")
_TRIM_RIGHT = re.compile(r"[ \t\r\n]+-\}\}")
_WORD = re.compile(r"\w+")
_STRING = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_CHAR = re.compile(r"'(?:[^'\\\n]|\\[^\n])*'")
_RAW = re.compile(r"`[^`]*`")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?|0[bBoO][0-9_]*"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
_SIMPLE = {"|": "pipe", ",": "comma", "=": "assign"}


def tokens(source: str) -> Iterator[Token]:
    """All tokens, the last of kind eof or error."""
    position, line, trim = 0, 1, False
    while True:
        start = source.find("{{", position)
        text = source[position:] if start < 0 else source[position:start]
        shown = text.lstrip(_SPACE) if trim else text
        if start >= 0 and _TRIM_LEFT.match(source, start + 2):
            shown = shown.rstrip(_SPACE)
        if shown:
            yield Token(
                "text", shown, line + text[: len(text) - len(text.lstrip(_SPACE))].count("\n") if trim else line
            )
        line += text.count("\n")
        if start < 0:
            yield Token("eof", "", line)
            return
        if _is_comment(source, start):
            end, trim, problem = _comment(source, start)
            if problem:
                yield Token("error", problem, line)
                return
            line += source.count("\n", start, end)
            position = end
            continue
        yield Token("left", "{{", line)
        position = start + (3 if _TRIM_LEFT.match(source, start + 2) else 2)
        depth = 0
        while True:
            token, end = _inside(source, position, line, depth)
            depth += {"open": 1, "close": -1}.get(token.kind, 0)
            yield token
            if token.kind in {"error", "eof"}:
                return
            line += source.count("\n", position, end)
            trim = token.kind == "right" and end - position > 2
            position = end
            if token.kind == "right":
                break


def _is_comment(source: str, start: int) -> bool:
    after = start + (4 if _TRIM_LEFT.match(source, start + 2) else 2)
    return source.startswith("/*", after)


def _comment(source: str, start: int) -> tuple[int, bool, str]:
    """End of the comment, whether it trims the text behind it, and what is wrong with it."""
    close = source.find("*/", source.index("/*", start) + 2)
    if close < 0:
        return start, False, "unclosed comment"
    trimmed = _TRIM_RIGHT.match(source, close + 2)
    if trimmed:
        return trimmed.end(), True, ""
    if not source.startswith("}}", close + 2):
        return start, False, "comment ends before closing delimiter"
    return close + 4, False, ""


def _inside(source: str, position: int, line: int, depth: int) -> tuple[Token, int]:
    """The token at `position` inside an action, and where it ends."""

    def token(kind: str, end: int) -> tuple[Token, int]:
        return Token(kind, source[position:end], line), end

    def error(message: str) -> tuple[Token, int]:
        return Token("error", message, line), position

    trimmed = _TRIM_RIGHT.match(source, position)
    if trimmed or source.startswith("}}", position):
        line += trimmed.group().count("\n") if trimmed else 0
        if depth:
            return error("unclosed left paren")
        return token("right", trimmed.end() if trimmed else position + 2)
    if position >= len(source):
        return error("unclosed action")
    char = source[position]
    if char in _SPACE:
        end = position
        while end < len(source) and source[end] in _SPACE and not _TRIM_RIGHT.match(source, end):
            end += 1
        return token("space", end)
    if char in _SIMPLE:
        return token(_SIMPLE[char], position + 1)
    if char == ":":
        return token("declare", position + 2) if source.startswith(":=", position) else error("expected :=")
    if char in "\"'`":
        return _quoted(source, position, line)
    if char == "(":
        return token("open", position + 1)
    if char == ")":
        return token("close", position + 1) if depth else error("unexpected right paren")
    if char == "$":
        return _ended(source, position, position + 1, "variable", line)
    if char == "." and not source[position + 1 : position + 2].isdigit():
        return _ended(source, position, position + 1, "field", line)
    if char in "+-." or char.isdigit():
        return _number(source, position, line)
    if char == "_" or char.isalnum():
        return _ended(source, position, position, "name", line)
    if char.isascii() and char.isprintable():
        return token("char", position + 1)
    return error(f"unrecognized character in action: {_named(char)}")


def _named(char: str) -> str:
    return f"U+{ord(char):04X} '{char}'" if char.isprintable() else f"U+{ord(char):04X}"


def _quoted(source: str, position: int, line: int) -> tuple[Token, int]:
    form, problem, kind = {
        '"': (_STRING, "unterminated quoted string", "string"),
        "'": (_CHAR, "unterminated character constant", "number"),
        "`": (_RAW, "unterminated raw quoted string", "string"),
    }[source[position]]
    match = form.match(source, position)
    if match is None:
        return Token("error", problem, line), position
    return Token(kind, match.group(), line), match.end()


def _ended(source: str, position: int, word_at: int, kind: str, line: int) -> tuple[Token, int]:
    """A word (behind `.` or `$`, or bare) and the check that something may follow it."""
    word = _WORD.match(source, word_at)
    end = word.end() if word else word_at
    follower = source[end : end + 1]
    if follower and follower not in " \t\r\n.,|:()" and not source.startswith("}}", end):
        return Token("error", f"bad character {_named(follower)}", line), end
    text = source[position:end]
    if kind == "name":
        if text in KEYWORDS:
            kind = "keyword"
        elif text in {"true", "false"}:
            kind = "bool"
        elif text == "nil":
            kind = "nil"
    elif text == ".":
        kind = "dot"
    return Token(kind, text, line), end


def _number(source: str, position: int, line: int) -> tuple[Token, int]:
    match = _NUMBER.match(source, position)
    end = match.end() if match else position
    if source[end : end + 1] in {"+", "-"}:
        # A complex number: it must end in "i".
        imaginary = _NUMBER.match(source, end)
        end = imaginary.end() if imaginary else end
        if source[end - 1] != "i":
            return Token("error", f"bad number syntax: {quote(source[position:end])}", line), end
    if source[end : end + 1].isalnum() or end == position:
        return Token("error", f"bad number syntax: {quote(source[position : end + 1])}", line), end
    return Token("number", source[position:end], line), end
