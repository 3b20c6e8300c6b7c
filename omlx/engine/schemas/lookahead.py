"""Look-ahead in the regular expressions of JSON schemas, written without: the common forms.

`^(?=a)b` is two patterns that both hold. So is `^(?!a)b`, where what must not follow is made of plain texts: no text
begins with these, is one of these, contains or ends with them. The compiler has no look-ahead of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_MOST = 2000
"""Characters of the texts that are excluded together."""
_DEEPEST = 100
"""Characters of the longest of them: they are nested in the pattern."""
_LONGEST_WITHIN = 12
"""Characters of a text that must not be contained: the pattern grows with a power of it."""
_EVERYTHING = frozenset({"", ".*", ".*$", r"[\s\S]*", r"[\s\S]*$"})
_NOT_EMPTY = frozenset({".+", ".+$", "."})
_BLANK = frozenset({r"\s*$", r"\s+$", "[ ]*$", " *$"})
_LENGTHS = re.compile(r"\^\(\?=\.\{(?P<least>[0-9]{1,6})(?P<comma>,)?(?P<most>[0-9]{1,6})?\}\$\)")
_NOWHERE = re.compile(r"\^?\(\(\?!(?P<texts>[^()]*)\)\.\)(?P<count>[*+])\$?")
"""`((?!text).)*`"""
_PIECE = re.compile(
    r"(?:\\(?P<escaped>[^A-Za-z0-9])|\[(?P<single>[^\]\\^])\]|(?P<plain>[^\\\[\](){}.*+?^$|]))"
    r"(?:\{(?P<times>[0-9])\})?"
)


class _Text(NamedTuple):
    text: str
    within: bool
    """It may have anything in front of it."""
    ends: bool
    """Nothing may follow it."""


def split(pattern: str) -> list[str] | None:
    """Patterns without look-ahead that hold together where `pattern` does; None where that cannot be said."""
    whole = _NOWHERE.fullmatch(pattern)
    if whole:
        texts = _texts("|".join(f".*{text}" for text in whole["texts"].split("|")))
        return None if texts is None else _excluding(texts, empty=whole["count"] == "*")
    if not pattern.startswith(("^(?!", "^(?=")):
        return [pattern]
    rest, found, excluded = pattern[1:], [], []
    while rest.startswith(("(?!", "(?=")):
        end = _end_of_group(rest)
        if end is None:
            return None
        if rest[2] == "=":
            found.append(f"^(?:{rest[3:end]})")
        elif rest[3:end] in _BLANK:
            found.append(r"\S")
        else:
            texts = _texts(rest[3:end])
            if texts is None:
                return None
            excluded += texts
        rest = rest[end + 1 :]
    others = _excluding(excluded, empty=rest not in _NOT_EMPTY)
    if others is None or "|" in _outside_groups(rest):
        return None
    return [*others, *found, *([] if rest in _EVERYTHING | _NOT_EMPTY and (others or found) else [f"^{rest}"])]


def without_names(pattern: str) -> tuple[str, list[str]] | None:
    """What stands behind a look-ahead that excludes whole texts only, and these texts; None for other patterns."""
    end = _end_of_group(pattern[1:]) if pattern.startswith("^(?!") else None
    texts = _texts(pattern[4 : end + 1]) if end is not None else None
    if end is None or not texts or not all(text.ends and not text.within for text in texts):
        return None
    rest = pattern[end + 2 :]
    return (f"^{rest}", [text.text for text in texts]) if rest and "|" not in _outside_groups(rest) else None


def lengths(pattern: str) -> tuple[str, dict[str, int]]:
    """`pattern` without a look-ahead that only counts characters, and what that says."""
    found = _LENGTHS.match(pattern)
    if found is None:
        return pattern, {}
    least, most = int(found["least"]), found["most"] if found["comma"] else found["least"]
    rest = "^" + pattern[found.end() :]
    return rest, {"minLength": least, **({"maxLength": int(most)} if most else {})}


def any_text_but(texts: Iterable[str], *, empty: bool = True) -> str | None:
    """A pattern for every text but these; None where it would become too large."""
    return _any_but(texts, begins=False, empty=empty)


def _any_but(texts: Iterable[str], *, begins: bool, empty: bool) -> str | None:
    """The same; `begins`: for every text that does not begin with one of these. `empty`: it may be empty."""
    tree: dict[str, Any] = {}
    size = deepest = 0
    for text in texts:
        size, deepest = size + len(text) + 1, max(deepest, len(text))
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    if size > _MOST or deepest > _DEEPEST or (begins and "" in tree):
        return None
    return f"^(?:{_others(tree, begins, empty)})$"


def _others(node: dict[str, Any], begins: bool, empty: bool) -> str:
    """What may follow where the texts go on as `node` says, so that none of them results."""
    following = {character: inner for character, inner in node.items() if character}
    ways = [""] if empty and "" not in node else []
    letters = "".join(map(_literal, following))
    ways.append(rf"[^{letters}][\s\S]*" if letters else r"[\s\S]+")
    ways += [
        f"{_literal(character)}(?:{_others(inner, begins, True)})"
        for character, inner in following.items()
        if not (begins and "" in inner)
    ]
    return "|".join(ways)


def _literal(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


def _excluding(texts: list[_Text], *, empty: bool) -> list[str] | None:
    kinds: dict[tuple[bool, bool], list[str]] = {}
    for text, within, ends in texts:
        kinds.setdefault((within, ends), []).append(text)
    found = [
        *([_any_but(kinds[False, False], begins=True, empty=empty)] if (False, False) in kinds else []),
        *([_any_but(kinds[False, True], begins=False, empty=empty)] if (False, True) in kinds else []),
        *(_without(text) for text in kinds.get((True, False), [])),
        *(_not_ending(text) for text in kinds.get((True, True), [])),
    ]
    patterns = [pattern for pattern in found if pattern is not None]
    if not empty and not ((False, False) in kinds or (False, True) in kinds):
        patterns.append(r"[\s\S]")
    return patterns if len(found) <= len(patterns) else None


def _not_ending(text: str) -> str:
    ways = [""] if text else []
    for at in range(len(text)):
        behind = "".join(map(_literal, text[at + 1 :]))
        ways.append(rf"(?:[\s\S]*[^{_literal(text[at])}]){'?' if behind else ''}{behind}")
    return f"^(?:{'|'.join(ways)})$"


def _without(text: str) -> str | None:
    """A pattern for every text that does not contain this one: the automaton that looks for it, as an expression."""
    size = len(text)
    if not 0 < size <= _LONGEST_WITHIN:
        return None
    edges: list[list[str]] = [["" for _ in range(size)] for _ in range(size)]
    letters = list(dict.fromkeys(text))
    for state in range(size):
        for letter in letters:
            read = text[:state] + letter
            after = next(length for length in range(min(size, len(read)), -1, -1) if read.endswith(text[:length]))
            if after < size:
                edges[state][after] = _either(edges[state][after], _literal(letter))
        edges[state][0] = _either(edges[state][0], f"[^{''.join(map(_literal, letters))}]")
    ends = ["" for _ in range(size)]
    for gone in range(size - 1, 0, -1):
        again = f"(?:{edges[gone][gone]})*" if edges[gone][gone] else ""
        for state in range(gone):
            if not edges[state][gone]:
                continue
            way = f"(?:{edges[state][gone]}){again}"
            for after in range(gone):
                if edges[gone][after]:
                    edges[state][after] = _either(edges[state][after], f"{way}(?:{edges[gone][after]})")
            ends[state] = f"{ends[state]}|{way}(?:{ends[gone]})"
    return f"^(?:{edges[0][0]})*(?:{ends[0]})$"


def _either(one: str, other: str) -> str:
    return f"{one}|{other}" if one else other


# ---------------------------------------------------------------- reading
def _texts(choices: str) -> list[_Text] | None:
    """The plain texts that an expression stands for; None where it is more than that."""
    found = []
    for choice in choices.split("|"):
        body = choice.removeprefix("^")
        within = body.startswith(".*")
        body = body.removeprefix(".*")
        ends = body.endswith("$") and not body.endswith("\\$")
        body = body.removesuffix("$") if ends else body
        body = body.removesuffix(".*") if not body.endswith("\\.*") else body
        ends = ends and not choice.endswith(".*$")
        text, at = "", 0
        while at < len(body):
            piece = _PIECE.match(body, at)
            if piece is None:
                return None
            character = piece["escaped"] or piece["single"] or piece["plain"]
            text += character * int(piece["times"] or 1)
            at = piece.end()
        if not text and not ends:
            return None
        found.append(_Text(text, within, ends))
    return found


def _end_of_group(text: str) -> int | None:
    """Where the group ends that `text` begins with."""
    depth, at, inside = 0, 0, False
    while at < len(text):
        match text[at]:
            case "\\":
                at += 1
            case "[" if not inside:
                inside = True
            case "]":
                inside = False
            case "(" if not inside:
                depth += 1
            case ")" if not inside:
                depth -= 1
                if not depth:
                    return at
        at += 1
    return None


def _outside_groups(text: str) -> str:
    """`text` without its groups and classes."""
    out, at = [], 0
    while at < len(text):
        if text[at] == "(":
            end = _end_of_group(text[at:])
            if end is None:
                return "|"
            at += end
        elif text[at] == "\\":
            at += 1
        elif text[at] == "[":
            end = text.find("]", at + 2)
            at = len(text) if end < 0 else end
        else:
            out.append(text[at])
        at += 1
    return "".join(out)
