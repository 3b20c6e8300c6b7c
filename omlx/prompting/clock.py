"""A *clock line* is a line of a system prompt that tells the time of day at which the request was made.

Only short lines count, and only where a word says that the time is the present one ("current", "now", "timestamp" …, in
several languages) or the line is nothing but a label and a point in time. Opening hours and dates of events stay.
"""

from __future__ import annotations

import re
from itertools import islice

_LONGEST_LINE = 200
"""Characters. What tells the time is short; a longer line says other things, too."""
_LONGEST_HEADING = 60
_MOST_LINES = 64
"""That look as if they could tell a time: a prompt of thousands of them is no system prompt, and must cost little."""
_LIKELY = re.compile(r"\d(?:[:.]\d\d|\s?[時时点시]|\d{9})")
_BLANKS = re.compile(r"\s+")
_DAYS = "mon|tue|wed|thu|fri|sat|sun"
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_CLOCK = r"\d{1,2}[:.]\d\d(?:[:.]\d\d(?:[.,]\d+)?)?(?:\s*[ap]\.?m\.?)?"
_ZONE = r"(?:\s*(?:z\b|utc|gmt|[+-]\d\d:?\d\d|[+-]\d{1,2}\b|\(?[a-z]{2,5}\)?\b))*"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"  # 2026-11-30
    r"|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"  # 30.11.2026, 11/30/2026
    rf"|(?:(?:{_DAYS})[a-z]*\.?,?\s+)?\d{{1,2}}\.?\s+[^\W\d]{{3,}}\.?,?\s+\d{{4}}"  # Mon, 30 Nov 2026
    rf"|(?:(?:{_DAYS})[a-z]*\.?,?\s+)?(?:{_MONTHS})[a-z]*\.?\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}"  # Nov 30, 2026
    r"|\d{4}\s*[年년]\s*\d{1,2}\s*[月월]\s*\d{1,2}\s*[日일])"
)
_BETWEEN = r"(?:t|,?\s+(?:at|um|à|a las|kl\.?)\s+|[,;]?\s*(?:\([^()\d]*\)|[^\W\d]+)?[,;]?\s*)"
_CTIME = rf"(?:{_DAYS})[a-z]*\s+(?:{_MONTHS})[a-z]*\s+\d{{1,2}}\s+{_CLOCK}(?:\s+[a-z]{{3,5}})?\s+\d{{4}}"
_ORIENTAL = (
    r"(?:\d{4}\s*[年년].{0,16}?)?(?:[上下]午|午前|午後|오전|오후)?\s*"
    r"\d{1,2}\s*[時时点시]\s*\d{1,2}\s*[分분](?:\s*\d{1,2}\s*[秒초])?"
)
_MOMENT = re.compile(rf"(?:{_CTIME}|{_DATE}{_BETWEEN}{_CLOCK}{_ZONE}|{_ORIENTAL})", re.IGNORECASE)
"""A date with a time of day."""
_TIME_ONLY = re.compile(r"(?<![\d:])\d{1,2}:\d\d(?::\d\d)?(?![\d:])")
_EPOCH = re.compile(r"(?<![\d.-])1[6-9]\d{8}(?:\d{3}|\.\d+)?(?![\d.-])")
"""Seconds or milliseconds since 1970, from 2020 to 2033."""
_NOW = re.compile(
    r"(?<![a-z])(?:current|currently|today|now|presently|right now|local time|system time"
    r"|aktuelle[rsn]?|derzeit|jetzt|heute|heutige[rsn]?|actuel(?:le)?s?|actuellement|maintenant|aujourd'hui"
    r"|actual(?:es)?|ahora|hoy|attuale|adesso|oggi|atual|agora|hoje|huidige|nu|vandaag)(?![a-z])"
    r"|сейчас|текущ|сегодня|当前|现在|目前|今天|當前|現在|今日|本日|현재|지금|오늘",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:time\s*stamp|time|date|datetime|clock|epoch|unix|now|utc|zeit|uhrzeit|datum|zeitstempel|heure|date et heure"
    r"|horodatage|hora|fecha|fecha y hora|ora|data|data e ora|data e hora|tijd"
    r"|время|дата|时间|日期|時間|日時|時刻|시간|날짜)",
    re.IGNORECASE,
)
_EPOCH_LABEL = re.compile(r"(?:epoch|unix|timestamp|time|now)", re.IGNORECASE)
_DECORATION = re.compile(r"</?[\w:.-]+/?>|[\s\"'`*_#:=,;.()\[\]{}<>|/&-]|:", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d_]+")
_FILLING = frozenset(
    ["and", "the", "is", "at", "on", "of", "in", "it", "und", "et", "y", "e", "unix", "utc", "gmt", "local", "system",
     "server", "user", "request", "session", "iso", "rfc", "ms", "seconds", "milliseconds", *_DAYS.split("|"),
     "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
)  # fmt: skip
"""Words beside a label that say nothing else."""


def split_clock(text: str) -> tuple[str, str]:
    """`text` without its clock lines, and those lines."""
    lines = text.splitlines(keepends=True)
    gone: set[int] = set()
    likely = (index for index, line in enumerate(lines) if len(line) <= _LONGEST_LINE and _LIKELY.search(line))
    for index in islice(likely, _MOST_LINES):
        if index and index - 1 not in gone and _is_headed(lines[index - 1], lines[index]):
            gone |= {index - 1, index}
        elif tells_time(lines[index]):
            gone.add(index)
    kept = "".join(line for index, line in enumerate(lines) if index not in gone)
    return kept, "".join(lines[index] for index in sorted(gone))


def tells_time(line: str) -> bool:
    """Whether the line tells the present time of day."""
    line = _BLANKS.sub(" ", line)
    if len(line) > _LONGEST_LINE or not _LIKELY.search(line):
        return False
    if not (_NOW.search(line) or _LABEL.search(line)):
        return False
    if _EPOCH.search(line):
        return bool(_EPOCH_LABEL.search(line)) and _is_bare(_EPOCH.sub(" ", line))
    if _NOW.search(line) and (_MOMENT.search(line) or _TIME_ONLY.search(line)):
        return not _is_range(line)
    rest, count = _MOMENT.subn(" ", line)
    return count == 1 and _LABEL.search(rest) is not None and _is_bare(rest)


def _is_headed(heading: str, value: str) -> bool:
    """A heading such as "## Current Time" with nothing but a point in time below it."""
    if len(heading) > _LONGEST_HEADING or heading.lstrip().startswith("<") or not _NOW.search(heading):
        return False
    value = _BLANKS.sub(" ", value)
    if len(value) > _LONGEST_HEADING:
        return False
    rest, count = _MOMENT.subn(" ", value)
    return bool(count) and not _LABEL.search(rest) and _is_bare(rest)


def _is_bare(rest: str) -> bool:
    """Nothing stands beside the time but a label and words that belong to it."""
    words = _WORDS.findall(_DECORATION.sub(" ", rest))
    return all(word.lower() in _FILLING or _LABEL.fullmatch(word) or _NOW.fullmatch(word) for word in words)


def _is_range(line: str) -> bool:
    """Two times of day: opening hours, not the time."""
    return len(_TIME_ONLY.findall(line)) > 1 and _MOMENT.search(line) is None
