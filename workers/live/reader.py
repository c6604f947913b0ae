"""Reads the live text of one turn. While Redis is away there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.live import key_of

_AT_A_TIME = 1000
_PATIENCE_S = 1.0
_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the stream (see `workers.live`); `attempt` is comparable, (0, 0) for what is no attempt's."""

    kind: str
    text: str = ""
    attempt: tuple[int, int] = (0, 0)
    iteration: int = 0
    n: int = 0
    model: str = ""
    at: int = 0
    tool: str = ""


class LiveReader:
    """Begins with what the stream still holds; `read` gives what is new. Never raises for Redis."""

    def __init__(self, redis_url: str, turn_id: UUID) -> None:
        self._redis = redis.Redis.from_url(
            redis_url,
            socket_timeout=_PATIENCE_S,
            socket_connect_timeout=_PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._key = key_of(turn_id)
        self._cursor = "0"
        self._retry_at = 0.0

    def read(self) -> Sequence[Entry]:
        if time.monotonic() < self._retry_at:
            return ()
        try:
            # As plain lists: which of its two shapes the client makes of them depends on the protocol.
            found: Any = self._redis.xrange(
                self._key, f"({self._cursor}" if self._cursor != "0" else "-", count=_AT_A_TIME
            )
        except (redis.RedisError, OSError):
            self._retry_at = time.monotonic() + _PAUSE_S
            return ()
        if not found:
            return ()
        self._cursor = found[-1][0]
        return [_entry(cast("Mapping[str, str]", fields)) for _, fields in found]

    def close(self) -> None:
        self._redis.close()


def _entry(fields: Mapping[str, str]) -> Entry:
    token, _, position = fields.get("attempt", "0-0").partition("-")
    return Entry(
        kind=fields.get("kind", ""),
        text=fields.get("text", ""),
        attempt=(int(token), int(position)),
        iteration=int(fields.get("iteration", 0)),
        n=int(fields.get("n", 0)),
        model=fields.get("model", ""),
        at=int(fields.get("at", 0)),
        tool=fields.get("tool", ""),
    )
