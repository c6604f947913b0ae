"""A RateGuard over Redis: one round trip before a call and one after it, and none where nothing is known and no limit set."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from orchestration.carrying import Registry
from orchestration.errors import ModelError
from orchestration.guarding import Advice, GuardedCall, Held, HeldBy, Permit
from orchestration.providers.settings import ProviderSettings
from orchestration.quota import Quota
from persistence.records.usage import Usage
from workers import redis_connections
from workers.rate_guard import news, scopes
from workers.rate_guard.news import News
from workers.rate_guard.scopes import Scopes
from workers.rate_guard.scripts import INDEX, Scripts

log = logging.getLogger(__name__)

# How often a service looks for what other processes found out, and the age at which a call looks for itself.
INTERVAL_S = 0.2
_STALE_S = 1.0
# What Redis gets to answer, and how long it is left alone when it did not.
_PATIENCE_S = 0.25
_AWAY_S = 5.0
_CONNECTIONS = 16
_NOTHING: Mapping[str, float] = MappingProxyType({})


class RedisRateGuard:
    """A RateGuard. One serves every thread of a process; make it after the process has forked.

    `_view` is what the index of Redis had when it was last read: names, and the instants (monotonic) until which they
    matter. `_refused` is what this process itself knows of lanes, for when Redis is away.
    """

    def __init__(self, redis_url: str, providers: Mapping[str, ProviderSettings]) -> None:
        self._providers = providers
        self._pool = redis.BlockingConnectionPool.from_url(
            redis_url,
            connection_class=redis_connections.of(redis_url),
            max_connections=_CONNECTIONS,
            timeout=_PATIENCE_S,
            socket_timeout=_PATIENCE_S,
            socket_connect_timeout=_PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._scripts = Scripts(redis.Redis(connection_pool=self._pool))
        self._view = _NOTHING
        self._view_at = 0.0
        self._away_until = 0.0
        self._refused: dict[str, float] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._pool.disconnect()

    def ask(self, call: GuardedCall) -> Permit | Held:
        """See RateGuard."""
        settings = self._settings(call)
        size = call.tokens() if settings.tokens_per_minute else 0
        is_limited = bool(settings.requests_per_minute or settings.tokens_per_minute)
        self._look_if_stale()
        if not is_limited and not self._view and not self._refused:
            return Permit()
        found = scopes.of(call, settings)
        if not is_limited and not self._knows(found):
            return self._alone(found)
        asked = {
            "turn": str(call.turn_id),
            "jitter": random.random(),
            "breakers": found.breakers,
            "common": found.common,
            "lanes": [{"rate": lane.rate, "key": lane.key} for lane in found.lanes],
            "bucket": found.bucket,
            "requests": settings.requests_per_minute or 0,
            "tokens": settings.tokens_per_minute or 0,
            "size": size,
            "limit_ms": round(call.limit_s * 1000),
            "is_last": call.is_last,
        }
        answer = self._run(self._scripts.ask, asked)
        try:
            by, wait_ms, key, is_probe = answer or ("", 0, -1, 0)
            if by:
                return Held(HeldBy(by), int(wait_ms) / 1000)
            if not 0 <= int(key) < len(found.lanes):
                return self._alone(found)
            return Permit(int(key), size, bool(is_probe))
        except (TypeError, ValueError) as error:
            self._lose(error)
            return self._alone(found)

    def answered(self, call: GuardedCall, permit: Permit, usage: Usage | None, quota: Quota | None) -> None:
        """See RateGuard."""
        if not self._view and not self._refused and not permit.reserved_tokens and quota is None:
            return
        settings = self._settings(call)
        found = scopes.of(call, settings)
        if self._refused:
            self._refused.pop(found.lanes[permit.key].key, None)
        self._tell(call, found, permit, news.of_answer(found, settings, permit, self._view, usage, quota))

    def failed(self, call: GuardedCall, permit: Permit, error: ModelError) -> Advice:
        """See RateGuard."""
        found = scopes.of(call, self._settings(call))
        told = news.of_failure(found, permit, self._view, error)
        self._remember(told)
        answer = self._tell(call, found, permit, told)
        if answer is None:
            others = sum(n != permit.key and self._is_usable(lane) for n, lane in enumerate(found.lanes))
            return Advice(other_keys=others)
        wait_ms, others = answer
        return Advice(None if wait_ms < 0 else wait_ms / 1000, others)

    def dropped(self, call: GuardedCall, permit: Permit) -> None:
        """See RateGuard."""
        if permit.is_probe:
            found = scopes.of(call, self._settings(call))
            self._tell(call, found, permit, News(unprobed=found.breakers))

    def watch(self, registry: Registry) -> None:
        """What a service thread calls, so that no call has to look for itself. Raises redis.RedisError."""
        if registry.all():
            self.look()

    def look(self) -> None:
        """Read what is known by now. Raises redis.RedisError while Redis is away."""
        asked_at = time.monotonic()
        try:
            answer: list[Any] = self._scripts.look(keys=[INDEX])
            self._view = {
                str(name): asked_at + int(ms) / 1000 for name, ms in zip(answer[::2], answer[1::2], strict=True)
            }
        except (redis.RedisError, OSError, TypeError, ValueError) as error:
            self._view_at = time.monotonic()
            self._lose(error)
            raise
        self._view_at = asked_at
        if self._away_until:
            self._away_until = 0.0
            log.info("rate_guard.back")

    def _look_if_stale(self) -> None:
        """In a process without a service thread, one call a second looks for itself; the others take what is there."""
        now = time.monotonic()
        if now - self._view_at < _STALE_S or now < self._away_until or not self._lock.acquire(blocking=False):
            return
        try:
            self.look()
        except (redis.RedisError, OSError, TypeError, ValueError):
            pass  # it was logged, and Redis is left alone now
        finally:
            self._lock.release()

    def _settings(self, call: GuardedCall) -> ProviderSettings:
        return self._providers[call.provider]

    def _knows(self, found: Scopes) -> bool:
        view, now = self._view, time.monotonic()
        return any(view.get(name, 0.0) > now for name in found.names)

    def _tell(self, call: GuardedCall, found: Scopes, permit: Permit, told: News) -> tuple[int, int] | None:
        """The script's answer; None where there was nothing to tell, or nobody to hear it."""
        if told == news.NOTHING:
            return None
        about = told.to_json() | {
            "turn": str(call.turn_id),
            "jitter": random.random(),
            "lanes": [{"rate": lane.rate, "key": lane.key} for lane in found.lanes],
            "used": permit.key + 1,
            "common": found.common,
            "bucket": found.bucket,
        }
        answer = self._run(self._scripts.tell, about)
        if told.hold or told.fault or told.refused:
            self._view_at = 0.0  # whoever comes next looks for itself
        try:
            return None if answer is None else (int(answer[0]), int(answer[1]))
        except (TypeError, ValueError, IndexError) as error:
            self._lose(error)
            return None

    def _run(self, script: Script, about: Mapping[str, Any]) -> Sequence[Any] | None:
        """The script's answer; None while Redis is away."""
        if time.monotonic() < self._away_until:
            return None
        try:
            return script(keys=[INDEX], args=[json.dumps(about)])
        except (redis.RedisError, OSError) as error:
            self._lose(error)
            return None

    def _lose(self, error: Exception) -> None:
        """Redis does not answer, or nonsense: every call is let through for a while."""
        if not self._away_until:
            log.warning("rate_guard.away", extra={"reason": type(error).__name__})
        self._away_until = time.monotonic() + _AWAY_S
        self._view = _NOTHING
        self._pool.disconnect(inuse_connections=False)

    def _alone(self, found: Scopes) -> Permit:
        """A permit without Redis, with the first key that this process knows nothing against."""
        usable = (n for n, lane in enumerate(found.lanes) if self._is_usable(lane))
        return Permit(next(usable, 0))

    def _is_usable(self, lane: scopes.Lane) -> bool:
        now = time.monotonic()
        return all(self._refused.get(name, 0.0) <= now for name in (lane.rate, lane.key))

    def _remember(self, told: News) -> None:
        now = time.monotonic()
        self._refused = {name: until for name, until in self._refused.items() if until > now}
        if told.refused:
            self._refused[told.refused] = now + told.refused_s
        if told.counts:
            self._refused[told.hold] = now + max(told.hold_s, 1.0)
