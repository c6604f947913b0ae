"""The keys of one provider: which one a call is made with, what it is, and how it is fetched anew."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from orchestration.errors import CallInterrupted, ConfigError
from orchestration.ports import StopSignal
from orchestration.providers import key_sources
from orchestration.providers.key_sources import Fetch, Unfetched
from orchestration.providers.settings import KeyStrategy, ProviderSettings

# A source that gave no key is left alone for so long: its other keys are tried meanwhile, and no herd runs the command.
_LEFT_ALONE_S = 5.0
# How many turns' keys are remembered, those that called last.
_TURNS = 4096
_LOOK_EVERY_S = 0.05
# How many fetched keys are still masked where they are quoted.
_SECRETS = 500


@dataclass(slots=True)
class _Entry:
    """One of `api_keys`. `fetched_at` is of the monotonic clock; a fault stands until `left_alone_until`."""

    reference: str
    fetch: Fetch | None
    value: str | None
    name: str
    uses: int = 0
    fetched_at: float = 0.0
    fault: ConfigError | None = None
    left_alone_until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Keyring:
    """A `ports.Keys`. One serves every thread of a process.

    A turn stays with its key while that is usable: what a provider has cached for it, it has cached for that key's owner.
    """

    def __init__(self, settings: ProviderSettings, environ: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError when a key that is not fetched is not there."""
        self._provider = settings.name
        self._strategy = settings.key_strategy
        self._entries = [
            _Entry(reference, key_sources.source(reference), value, _digest(value or reference))
            for reference, value in zip(settings.api_keys, settings.keys(environ), strict=True)
        ]
        self._secrets: list[str] = [e.value for e in self._entries if e.value]
        self._turns: OrderedDict[UUID, int] = OrderedDict()
        self._round = itertools.count()
        self._lock = threading.Lock()

    @property
    def secrets(self) -> Sequence[str]:
        """Every key that was in use here, those that have been replaced too."""
        return self._secrets

    @property
    def is_static(self) -> bool:
        """Whether there is no more than one key, which never changes."""
        return len(self._entries) < 2 and all(e.fetch is None for e in self._entries)

    def order(self, turn_id: UUID) -> Sequence[int]:
        """See `ports.Keys`. A source that has just given no key comes last."""
        if len(self._entries) < 2:
            return range(len(self._entries))
        with self._lock:
            first = self._first(turn_id)
        numbers = [(first + n) % len(self._entries) for n in range(len(self._entries))]
        if self._strategy is KeyStrategy.LEAST_USED:
            numbers = [first, *sorted((n for n in numbers if n != first), key=lambda n: self._entries[n].uses)]
        now = time.monotonic()
        return sorted(numbers, key=lambda n: self._entries[n].left_alone_until > now)

    def name(self, number: int) -> str:
        return self._entries[number].name

    def label(self, number: int) -> str:
        return key_sources.label(self._entries[number].reference, number)

    def refresh(self, number: int, *, used_at: float) -> bool:
        entry = self._entries[number]
        if entry.fetch is None:
            return False
        if entry.lock.acquire(blocking=False):  # else it is being fetched anew at this moment
            try:
                if entry.fetched_at <= used_at:  # else somebody was faster, and the next call has a new key already
                    entry.value = None
            finally:
                entry.lock.release()
        return True

    def prepare(self, number: int, stop: StopSignal) -> None:
        entry = self._entries[number]
        if entry.value is None:
            self._fetched(number, entry, stop)

    def value(self, number: int, turn_id: UUID | None, stop: StopSignal) -> str:
        """The key itself, for one call of this turn. Raises ConfigError when it cannot be had, CallInterrupted."""
        entry = self._entries[number]
        entry.uses += 1
        if turn_id is not None and len(self._entries) > 1:
            with self._lock:
                self._turns[turn_id] = number
                self._turns.move_to_end(turn_id)
                while len(self._turns) > _TURNS:
                    self._turns.popitem(last=False)
        return entry.value or self._fetched(number, entry, stop)

    def _first(self, turn_id: UUID) -> int:
        known = self._turns.get(turn_id)
        if known is not None:
            return known
        match self._strategy:
            case KeyStrategy.ORDER:
                return 0
            case KeyStrategy.ROUND_ROBIN:
                return next(self._round) % len(self._entries)
            case KeyStrategy.LEAST_USED:
                return min(range(len(self._entries)), key=lambda n: self._entries[n].uses)

    def _fetched(self, number: int, entry: _Entry, stop: StopSignal) -> str:
        """The key, fetched by one thread while the others that need it wait."""
        assert entry.fetch is not None
        while not entry.lock.acquire(timeout=_LOOK_EVERY_S):
            if stop.is_set():
                raise CallInterrupted("the model call was stopped while its key was fetched")
        try:
            if entry.value is not None:
                return entry.value
            if entry.fault is not None and time.monotonic() < entry.left_alone_until:
                raise entry.fault
            try:
                value = key_sources.checked(entry.fetch(stop))
            except Unfetched as fault:
                entry.fault = key_sources.config_error(entry.reference, number, self._provider, fault)
                entry.left_alone_until = time.monotonic() + _LEFT_ALONE_S
                raise entry.fault from None
            self._keep_secret(value)
            entry.value, entry.fault, entry.fetched_at = value, None, time.monotonic()
            return value
        finally:
            entry.lock.release()

    def _keep_secret(self, value: str) -> None:
        """Have the key masked wherever it may be quoted; of those that were fetched, the newest ones."""
        with self._lock:
            if value in self._secrets:
                return
            self._secrets.append(value)
            fixed = sum(e.fetch is None for e in self._entries)
            if len(self._secrets) > fixed + _SECRETS:
                del self._secrets[fixed]


def _digest(text: str) -> str:
    """What a key is called where others may read it. One that is fetched goes by its source, whatever it is today."""
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"perdure-key").hexdigest()
