"""Guards on a real Valkey, each as a process of its own would have one, and calls for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import redis

from orchestration.errors import ErrorClass, ModelError
from orchestration.guarding import Advice, GuardedCall, Held, HeldBy, Permit
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.quota import Quota
from persistence.records.usage import Usage
from workers.rate_guard.guard import RedisRateGuard

USAGE = Usage(input_tokens=100, output_tokens=10)


class Worker:
    """A guard, as one process has it. Words of tests, in one line each."""

    def __init__(self, guard: RedisRateGuard, provider: str, keys: tuple[str, ...] = ()) -> None:
        self.guard = guard
        self.provider = provider
        self.keys = keys

    @property
    def scope(self) -> str:
        """What the rate limit of its calls hangs on, with one key and no group."""
        return f"{self.provider}:large"

    def call(self, turn_id: UUID | None = None, **changes: Any) -> GuardedCall:
        made = GuardedCall(turn_id or uuid4(), self.provider, "large", self.keys, lambda: 100, 5.0, is_last=False)
        return replace(made, **changes)

    def asks(self, call: GuardedCall | None = None) -> Permit | Held:
        return self.guard.ask(call or self.call())

    def is_let_in(self, call: GuardedCall | None = None) -> Permit:
        found = self.asks(call)
        assert isinstance(found, Permit), found
        return found

    def is_held(self, call: GuardedCall | None = None, *, by: HeldBy = HeldBy.COOLING_DOWN) -> Held:
        found = self.asks(call)
        assert isinstance(found, Held)
        assert found.by is by
        return found

    def fails(
        self, kind: ErrorClass, call: GuardedCall | None = None, permit: Permit | None = None, **how: Any
    ) -> Advice:
        call = call or self.call()
        return self.guard.failed(call, permit or Permit(), ModelError(kind, kind.value, **how))

    def is_limited(
        self,
        retry_after_s: float | None = None,
        call: GuardedCall | None = None,
        *,
        permit: Permit | None = None,
    ) -> Advice:
        return self.fails(ErrorClass.RATE_LIMIT, call, permit, retry_after_s=retry_after_s, status=429)

    def answers(
        self,
        call: GuardedCall | None = None,
        permit: Permit | None = None,
        *,
        usage: Usage | None = USAGE,
        quota: Quota | None = None,
    ) -> None:
        self.guard.answered(call or self.call(), permit or Permit(), usage, quota)


@dataclass(frozen=True)
class Fleet:
    """Workers that share one Valkey, with provider names of this test's own."""

    redis_url: str
    name: str
    guards: list[RedisRateGuard]

    def workers(self, count: int = 2, *, keys: tuple[str, ...] = (), **settings: Any) -> list[Worker]:
        """So many workers of the same configuration."""
        provider = ProviderSettings(self.name, Api.OPENAI_CHAT, "http://127.0.0.1:9", **settings)
        return [self.worker({self.name: provider}, keys=keys) for _ in range(count)]

    def worker(
        self, providers: dict[str, ProviderSettings], provider: str | None = None, keys: tuple[str, ...] = ()
    ) -> Worker:
        guard = RedisRateGuard(self.redis_url, providers)
        self.guards.append(guard)
        return Worker(guard, provider or self.name, keys)

    @property
    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url, decode_responses=True)

    def now_ms(self) -> int:
        with closing(self.redis) as client:
            seconds, microseconds = client.time()
            return seconds * 1000 + microseconds // 1000

    def end_hold(self, worker: Worker, *, places: int = 0) -> None:
        """Let the instant of this worker's hold come, with so many places given away in its line."""
        with closing(self.redis) as client:
            client.hset(f"perdure:guard:hold:{worker.scope}", mapping={"until": self.now_ms(), "next": places})

    def everything(self) -> str:
        """All names and values that the guards keep."""
        with closing(self.redis) as client:
            found: list[object] = []
            for name in sorted(client.scan_iter("perdure:guard:*")):
                kind = client.type(name)
                read = {"string": client.get, "hash": client.hgetall, "zset": lambda n: client.zrange(n, 0, -1)}[kind]
                found += [name, read(name)]
            return str(found)


@contextmanager
def fleet_on(redis_url: str) -> Generator[Fleet]:
    made = Fleet(redis_url, f"p{uuid4().hex[:10]}", [])
    try:
        yield made
    finally:
        for guard in made.guards:
            guard.close()


def until(holds: Callable[[], bool], *, within_s: float = 20.0) -> None:
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, "what the test waits for did not come about"
        time.sleep(0.01)
