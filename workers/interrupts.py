"""One thread a process: reads the interrupt keys of all its turns, and stops those that are asked to."""

from __future__ import annotations

from functools import lru_cache
from typing import cast
from uuid import UUID

import redis

from orchestration.carrying import Registry
from workers.wakes import KEY

INTERVAL_S = 0.2


class InterruptWatcher:
    """Redis is the fast way; the stamp in Postgres, which the lease keeper sees, is the one that cannot be lost."""

    def __init__(self, keys: redis.Redis, registry: Registry) -> None:
        self._keys = keys
        self._registry = registry

    def run_once(self) -> None:
        """Raises redis.RedisError while Redis is away."""
        carried = self._registry.all()
        if not carried:
            return
        names = [_key(c.turn.id) for c in carried]
        # Five times a second the answer is no; as a number it costs a third of what a list of nothings costs to read.
        if not self._keys.exists(*names):
            return
        values = cast("list[str | None]", self._keys.mget(names))
        for each, value in zip(carried, values, strict=True):
            if value is not None:
                each.interrupt()


@lru_cache(maxsize=4096)
def _key(turn_id: UUID) -> str:
    return f"{KEY}{turn_id}"
