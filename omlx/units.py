"""Durations, sizes and times as Ollama's users write and read them (Go notation for durations, decimal byte units)."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

FOREVER_S = math.inf
"""A keep-alive that never ends."""

_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000,
            "m": 60_000_000_000, "h": 3_600_000_000_000}  # fmt: skip
_LONGEST_NS = 2**63
"""Go's durations are shorter: some 292 years."""
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_UNIT = re.compile(r"[^\d.]+")


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as "1h30m" or "-1.5s".

    Raises ValueError with Go's own message (`time: invalid duration "abc"`, `time: missing unit in duration "5"`,
    `time: unknown unit "d" in duration "1d"`): clients see these texts.
    """
    invalid = ValueError(f'time: invalid duration "{text}"')
    sign, rest = 1.0, text
    if rest[:1] in {"-", "+"}:
        sign = -1.0 if rest[0] == "-" else 1.0
        rest = rest[1:]
    if rest == "0":
        return 0.0
    if not rest:
        raise invalid
    total_ns = 0.0
    while rest:
        number = _NUMBER.match(rest)
        if number is None:
            raise invalid
        rest = rest[number.end() :]
        unit = _UNIT.match(rest)
        if unit is None:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if unit.group() not in _UNIT_NS:
            raise ValueError(f'time: unknown unit "{unit.group()}" in duration "{text}"')
        total_ns += float(number.group()) * _UNIT_NS[unit.group()]
        rest = rest[unit.end() :]
    if total_ns >= _LONGEST_NS:
        raise invalid
    return sign * total_ns / 1e9


def format_duration(seconds: float) -> str:
    """Go's `Duration.String()`: 1.5 → "1.5s", 5400 → "1h30m0s", 0.0023 → "2.3ms"."""
    ns = round(seconds * 1e9)
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for limit, size, unit in ((1_000, 1, "ns"), (1_000_000, 1_000, "µs"), (1_000_000_000, 1_000_000, "ms")):
        if ns < limit:
            return f"{sign}{_trim(ns / size)}{unit}"
    hours, ns = divmod(ns, _UNIT_NS["h"])
    minutes, ns = divmod(ns, _UNIT_NS["m"])
    text = f"{_trim(ns / 1e9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _trim(number: float) -> str:
    return f"{number:.9f}".rstrip("0").rstrip(".")


def parse_keep_alive(value: object) -> float | None:
    """Seconds a model stays loaded: None where nothing was given, `FOREVER_S` if negative or beyond Go's range.

    A JSON number is seconds, a string a Go duration; a bare integer string is taken as seconds (a superset of Ollama's
    API, and what its environment variable does). Raises ValueError with the message a client gets.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        kind = {bool: "bool", list: "[]interface {}", dict: "map[string]interface {}"}.get(type(value), "object")
        raise ValueError(f"Unsupported type: '{kind}'")
    if isinstance(value, str):
        if not value:
            return None
        seconds = float(value) if re.fullmatch(r"[+-]?\d+", value) else parse_duration(value)
    else:
        seconds = value
    return float(seconds) if 0 <= seconds < _LONGEST_NS / 1e9 else FOREVER_S


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of "8GB" (10^9), "8GiB" (2^30), "512MB" or a plain number; ValueError otherwise."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is no size: write a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB')
    unit = match.group(2).lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match.group(1)) * base ** " kmgt".index(unit[:1] or " "))


def human_bytes(count: int) -> str:
    """Decimal units as Ollama's tables show them: 1300000000 → "1.3 GB", 2000 → "2 KB", 1024 → "1.0 KB"."""
    value, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    whole = value >= 10 or value == int(value)
    return f"{int(value)} {unit}" if whole else f"{value:.1f} {unit}"


def human_parameters(count: int) -> str:
    """Parameter count as Ollama prints it: 8030000000 → "8.0B", 7000000000 → "7B", 134515008 → "134.52M"."""
    if count >= 1_000_000_000:
        return f"{count // 10**9}B" if count % 10**9 == 0 else f"{count / 1e9:.1f}B"
    if count >= 1_000_000:
        return f"{count // 10**6}M" if count % 10**6 == 0 else f"{count / 1e6:.2f}M"
    return f"{count / 1e3:.0f}K" if count >= 1_000 else str(count)


def human_time(when: datetime, now: datetime | None = None) -> str:
    """ "4 minutes from now", "24 hours ago": Ollama's relative time; hours are rounded, all else truncated."""
    seconds = (when - (now or datetime.now(UTC))).total_seconds()
    return f"{_human_span(abs(seconds))} {'from now' if seconds > 0 else 'ago'}"


def _human_span(seconds: float) -> str:
    whole, hours = int(seconds), round(seconds / 3600)
    minutes = whole // 60
    if whole < 1:
        return "Less than a second"
    if whole < 60:
        return "1 second" if whole == 1 else f"{whole} seconds"
    if minutes < 60:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    if hours < 24 * 14:
        return f"{hours // 24} days"
    if hours < 24 * 60:
        return f"{hours // 24 // 7} weeks"
    if hours < 24 * 365 * 2:
        return f"{hours // 24 // 30} months"
    return f"{whole // (3600 * 24 * 365)} years"
