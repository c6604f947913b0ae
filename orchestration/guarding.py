"""The port of the rate guard: what all workers know together of which calls make no sense now.

It is asked before a call and told after it. It decides nothing: a turn that is held rests, falls back or ends as `decide`
says. Whoever implements it never raises, and lets every call through when it knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from orchestration.errors import ModelError
from orchestration.quota import Quota
from persistence.records.usage import Usage


class HeldBy(StrEnum):
    """Why a call is not made now: stored names."""

    COOLING_DOWN = "cooling_down"  # the provider refused somebody for coming too often
    OWN_LIMITS = "own_limits"  # requests_per_minute or tokens_per_minute of the configuration
    ENDPOINT_DOWN = "endpoint_down"  # it kept failing, and somebody else is trying whether it is back
    NO_USABLE_KEY = "no_usable_key"  # every key of the provider was refused a short while ago


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """A call that is about to be made.

    `keys` are the names (digests) of the keys that it may be made with, the best first; none where the provider wants
    none. `tokens` is asked for its size, with its answer, where that matters. `limit_s` is how long it may take until
    its first word. `is_last` says that no other model could answer instead, so that refused keys are worth a try.
    """

    turn_id: UUID
    provider: str
    model: str
    keys: tuple[str, ...]
    tokens: Callable[[], int]
    limit_s: float
    is_last: bool


@dataclass(frozen=True, slots=True)
class Permit:
    """The call may be made, with the key of this number among `GuardedCall.keys`.

    `reserved_tokens` were taken from the provider's limit; `is_probe` says that others wait for what becomes of it.
    """

    key: int = 0
    reserved_tokens: int = 0
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The call is not to be made; ask again in `wait_s` seconds, when this turn's place in the line has come."""

    by: HeldBy
    wait_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What is known after a failed attempt: when this turn's next one may be made, and how many other keys are usable."""

    wait_s: float | None = None
    other_keys: int = 0


NO_ADVICE = Advice()


class RateGuard(Protocol):
    """See the module. Every answer comes within a fraction of a second, whatever the state of what stands behind it."""

    def ask(self, call: GuardedCall) -> Permit | Held:
        """Whether the call may be made now. Every Permit is followed by exactly one of the other three."""
        ...

    def answered(self, call: GuardedCall, permit: Permit, usage: Usage | None, quota: Quota | None) -> None:
        """A whole answer came."""
        ...

    def failed(self, call: GuardedCall, permit: Permit, error: ModelError) -> Advice:
        """It failed."""
        ...

    def dropped(self, call: GuardedCall, permit: Permit) -> None:
        """It was stopped before anything was known."""
        ...


class Unguarded:
    """Knows nothing and holds nobody; every call is made with the best of its keys."""

    def ask(self, call: GuardedCall) -> Permit | Held:  # noqa: ARG002
        return Permit()

    def answered(self, call: GuardedCall, permit: Permit, usage: Usage | None, quota: Quota | None) -> None:
        """Nobody else would know."""

    def failed(self, call: GuardedCall, permit: Permit, error: ModelError) -> Advice:  # noqa: ARG002
        return NO_ADVICE

    def dropped(self, call: GuardedCall, permit: Permit) -> None:
        """Nobody else would know."""
