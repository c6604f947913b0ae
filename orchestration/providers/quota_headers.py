"""What is left of a quota, from the headers of an answer.

OpenAI and those that imitate it tell how long it takes until a meter is full, as `1s`, `6m0s` or `12ms`, some as plain
seconds; Anthropic tells the instant, as RFC 3339. Headers that make no sense are left out.
https://platform.openai.com/docs/guides/rate-limits and https://platform.claude.com/docs/en/api/rate-limits
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx2

from orchestration.quota import Meter, Quota

_OPENAI = "x-ratelimit-"
_ANTHROPIC = "anthropic-ratelimit-"
_MARK = b"ratelimit-"
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS_S = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
# Above this, plain seconds are an instant and no duration; above the other, it is told in milliseconds.
_EPOCH_S, _EPOCH_MS = 1e9, 1e12


def quota_of(headers: httpx2.Headers) -> Quota | None:
    """The meters in the headers of one answer; None where there are none."""
    found = {
        name.lower().decode("latin-1"): value.decode("latin-1") for name, value in headers.raw if _MARK in name.lower()
    }
    if not found:
        return None
    now = _date(headers.get("date"))
    if any(name.startswith(_ANTHROPIC) for name in found):
        names = [
            _Names(*(f"{_ANTHROPIC}{kind}-{part}" for part in _PARTS))
            for kind in ("requests", "tokens", "input-tokens", "output-tokens")
        ]
    else:
        names = [_Names(*(f"{_OPENAI}{part}-{kind}" for part in _PARTS)) for kind in ("requests", "tokens")]
    quota = Quota(*(_meter(found, each, now) for each in names))
    return None if quota == Quota() else quota


class _Names(NamedTuple):
    """The headers of one meter."""

    remaining: str
    limit: str
    reset: str


_PARTS = _Names._fields


def _meter(found: Mapping[str, str], names: _Names, now: datetime) -> Meter | None:
    left = _count(found.get(names.remaining))
    if left is None:
        return None
    return Meter(left, _count(found.get(names.limit)), _full_in_s(found.get(names.reset, ""), now))


def _count(text: str | None) -> int | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and abs(value) < _EPOCH_MS else None


def _full_in_s(text: str, now: datetime) -> float | None:
    told = text.strip()
    try:
        seconds = float(told)
    except ValueError:
        pass
    else:
        if not math.isfinite(seconds) or seconds < 0:
            return None
        if seconds >= _EPOCH_S:
            return max(seconds / (1000 if seconds >= _EPOCH_MS else 1) - now.timestamp(), 0.0)
        return seconds
    parts = _DURATION.fullmatch(told)
    if told and parts is not None:
        return sum(float(part) * unit for part, unit in zip(parts.groups(), _UNITS_S, strict=True) if part)
    try:
        return max((datetime.fromisoformat(told) - now).total_seconds(), 0.0)
    except (TypeError, ValueError):  # nothing, or an instant without its time zone
        return None


def _date(told: str | None) -> datetime:
    """The answer's own `Date`: our clock and theirs may differ."""
    try:
        date = parsedate_to_datetime(told or "")
    except ValueError:
        return datetime.now(UTC)
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
