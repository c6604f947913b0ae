"""One attempt under the rate guard: what is asked before it, told after it, and stored of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orchestration import holding
from orchestration.errors import CallInterrupted, ConfigError, ErrorClass, ModelError
from orchestration.guarding import Advice, GuardedCall, Held, Permit, RateGuard
from orchestration.ports import Keys, ModelClient, ModelRequest, Reply, StopSignal
from persistence.records.outcome import Event, Outcome
from persistence.records.turn import Turn


@dataclass(frozen=True, slots=True)
class Guarded:
    """A call that was let through. Exactly one of `answered`, `started`, `failed` and `dropped` follows.

    `numbers` are those of the provider's keys in the order in which the guard was asked for them, none where there is
    nothing to choose; `asked_at` is of the monotonic clock.
    """

    guard: RateGuard
    turn: Turn
    call: GuardedCall
    permit: Permit
    keys: Keys | None
    numbers: Sequence[int]
    asked_at: float

    @property
    def key(self) -> int:
        """The number of the key to make the call with."""
        return self.numbers[self.permit.key] if self.numbers else 0

    @property
    def key_label(self) -> str | None:
        """What the configuration calls that key."""
        return self.keys.label(self.key) if self.keys is not None and self.numbers else None

    def answered(self, reply: Reply, outcome: Callable[[], Outcome]) -> Outcome:
        """What a whole reply leaves, which may still be of no use; `outcome` makes it once the guard has heard of it."""
        self.guard.answered(self.call, self.permit, reply.usage, reply.quota)
        made = outcome()
        call = made.model_call
        if call is None or call.error is not None:
            return self._told(replace(made, counters=holding.rested(made.counters)))
        return self._told(replace(made, counters=holding.answered(made.counters)))

    def started(self, outcome: Outcome) -> Outcome:
        """`outcome` of an answer that the provider makes by itself: the call is over, and what it uses is not known yet."""
        self.guard.answered(self.call, self.permit, None, None)
        counters = holding.rested(outcome.counters)
        if counters.pending is not None:
            counters = replace(counters, pending=replace(counters.pending, key_label=self.key_label))
        return self._told(replace(outcome, counters=counters))

    def failed(self, error: ModelError, outcome: Callable[[ModelError], Outcome]) -> Outcome:
        """What a failed attempt leaves; `outcome` makes it once the guard has said how long this turn has to wait."""
        refreshed, advice = self.told_of(error)
        if advice.wait_s is not None:
            error.retry_after_s = advice.wait_s
        made = outcome(error)
        other = holding.with_another_key(self.turn.counters, error.error, advice, refreshed=refreshed)
        if other is None:
            return self._told(replace(made, counters=holding.rested(made.counters)))
        return self._told(replace(made, counters=other), with_another_key=True)

    def told_of(self, error: ModelError) -> tuple[int | None, Advice]:
        """What follows from a failed attempt, whatever becomes of it here: the number of a key that will be fetched anew for
        the next one, and what the guard says."""
        refreshed = self._refreshed(error)
        if refreshed is None:
            return None, self.guard.failed(self.call, self.permit, error)
        self.guard.dropped(self.call, self.permit)
        return refreshed, Advice()

    def dropped(self, outcome: Outcome) -> Outcome:
        """`outcome` of a call that was stopped."""
        self.drop()
        return self._told(outcome)

    def drop(self) -> None:
        """Tell the guard that nothing will be known of the call."""
        self.guard.dropped(self.call, self.permit)

    def _refreshed(self, error: ModelError) -> int | None:
        """The number of the key that will be fetched anew, where that may mend the error."""
        if error.error is not ErrorClass.AUTH or self.keys is None or not self.numbers:
            return None
        may = holding.may_refresh(self.turn.counters, self.key)
        return self.key if may and self.keys.refresh(self.key, used_at=self.asked_at) else None

    def _told(self, outcome: Outcome, **more: bool) -> Outcome:
        """`outcome`, whose record says which key was used, and its events too, where there was a choice."""
        if outcome.model_call is not None and self.numbers:
            outcome = replace(outcome, model_call=replace(outcome.model_call, key_label=self.key_label))
        told = {"key": self.key + 1, **more} if len(self.numbers) > 1 else more
        events = tuple(
            replace(e, payload={**e.payload, **told}) if e.type.startswith(("model.", "compression.")) else e
            for e in outcome.events
        )
        return replace(outcome, events=events) if told else outcome


def ask(
    guard: RateGuard,
    client: ModelClient,
    turn: Turn,
    request: ModelRequest,
    *,
    stop: StopSignal,
    tokens: Callable[[], int],
    is_last: bool,
) -> Guarded | Outcome:
    """Ask the guard for this attempt, and have its key at hand: it may be made, or this is what the turn keeps instead.

    Raises ConfigError when no key can be had, CallInterrupted.
    """
    # Not isinstance: that costs 18 us with a protocol that has properties.
    keys: Keys | None = getattr(client, "keys", None)
    numbers = keys.order(turn.id) if keys is not None else ()
    call = GuardedCall(
        turn_id=turn.id,
        provider=client.name,
        model=request.model,
        keys=tuple(keys.name(n) for n in numbers) if keys is not None else (),
        tokens=tokens,
        limit_s=min(request.limits.connect_s + request.limits.first_token_s, request.limits.call_s),
        is_last=is_last,
    )
    permit = guard.ask(call)
    if isinstance(permit, Held):
        return _held(turn, call, permit)
    number = numbers[permit.key] if numbers else 0
    if keys is not None and numbers:
        try:
            keys.prepare(number, stop)
        except CallInterrupted:
            guard.dropped(call, permit)
            raise
        except ConfigError as error:
            guard.dropped(call, permit)
            return _without_key(turn, call, number, len(numbers) - 1, error)
    return Guarded(guard, turn, call, permit, keys, numbers, time.monotonic())


def _held(turn: Turn, call: GuardedCall, held: Held) -> Outcome:
    told = {"provider": call.provider, "model": call.model, "by": held.by.value, "wait_s": round(held.wait_s, 3)}
    return Outcome(holding.held(turn.counters, held), events=(Event("model.held", told),))


def _without_key(turn: Turn, call: GuardedCall, number: int, others: int, error: ConfigError) -> Outcome:
    """What is left where a key could not be fetched: the next one, or `error` where there is none."""
    advice = Advice(other_keys=others)
    other = holding.with_another_key(turn.counters, ErrorClass.AUTH, advice, refreshed=None)
    if other is None:
        raise error
    told = {
        "provider": call.provider,
        "model": call.model,
        "error": ErrorClass.AUTH.value,
        "key": number + 1,
        "why": str(error),
        "with_another_key": True,
    }
    return Outcome(other, events=(Event("model.failed", told),))
