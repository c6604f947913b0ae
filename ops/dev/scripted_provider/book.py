"""What the server saw: every request with its times and its end, refusals apart."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ops.dev.scripted_provider.asked import Api, Json

_SECRET_HEADERS = ("authorization", "x-api-key")


@dataclass(slots=True)
class Recorded:
    """One request. `monotonic` is in seconds of this host's monotonic clock, `at` is Unix time.

    `headers` hold no key: see `key_digest`. `body` is None where it was no JSON or the server is lean.
    `answer` is the status; None while nothing was sent. `disconnected_s` is how long after its arrival the client left
    before the answer was complete; `finished_s` when the answer was complete (or broken off on purpose).
    """

    n: int
    api: Api
    model: str
    script: str
    step: int | None
    attempt: int | None
    headers: Mapping[str, str]
    body: Json | None
    size: int
    at: float = field(default_factory=time.time)
    monotonic: float = field(default_factory=time.monotonic)
    answer: int | None = None
    refused: str | None = None
    refusal: str | None = None
    is_limit: bool = False
    warnings: tuple[str, ...] = ()
    finished_s: float | None = None
    disconnected_s: float | None = None

    @property
    def messages(self) -> list[Json]:
        """The conversation as it was sent: messages, or the items of a responses request."""
        return self.body.get("messages", self.body.get("input")) or [] if self.body else []

    def finish(self) -> None:
        self.finished_s = time.monotonic() - self.monotonic

    def disconnect(self) -> None:
        self.disconnected_s = time.monotonic() - self.monotonic

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"headers": dict(self.headers)}


class Book:
    """The requests in the order in which they came, and how often each step was asked for."""

    def __init__(self, *, keeps_requests: bool = True) -> None:
        self._keeps_requests = keeps_requests
        self.recorded: list[Recorded] = []
        self._n = 0
        self._by_script: dict[str, int] = {}
        self._by_step: dict[tuple[str, str, int], int] = {}

    @property
    def total(self) -> int:
        """Every request since the server started, also those that were deleted."""
        return self._n

    def add(self, recorded: Recorded) -> None:
        self._n += 1
        recorded.n = self._n
        if self._keeps_requests:
            self.recorded.append(recorded)

    def count(self, script: str, conversation: str, step: int) -> tuple[int, int]:
        """Count one accepted request: which it is, from 1, of its script, and of its conversation at this step."""
        key = (script, conversation, step)
        self._by_script[script] = self._by_script.get(script, 0) + 1
        self._by_step[key] = self._by_step.get(key, 0) + 1
        return self._by_script[script], self._by_step[key]

    def forget_counts(self, script: str) -> None:
        """A script that is registered anew starts anew."""
        self._by_script.pop(script, None)
        for key in [k for k in self._by_step if k[0] == script]:
            del self._by_step[key]

    def requests(self, name: str | None = None) -> list[Recorded]:
        """All requests, or those of one script or model."""
        return [r for r in self.recorded if name is None or name in (r.script, r.model)]

    def refusals(self, *, limits: bool = False) -> list[Recorded]:
        """Requests that were refused for a fault of the client; `limits` adds those above a limit."""
        return [r for r in self.recorded if r.refused and (limits or not r.is_limit)]

    def clear(self) -> None:
        self.recorded.clear()


def key_digest(key: str) -> str:
    """What stands in a recorded header for an API key."""
    return f"sha256:{sha256(key.encode()).hexdigest()[:16]}"


def without_keys(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: key_digest(value.removeprefix("Bearer ")) if name in _SECRET_HEADERS else value
        for name, value in headers.items()
    }
