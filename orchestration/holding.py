"""What a turn does while the rate guard holds its next call, and when another key is worth a try. Pure.

Every count is kept in `counters.remedies`, so that it holds over a crash. Waiting for the guard consumes no attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestration.errors import ErrorClass
from orchestration.guarding import Advice, Held, HeldBy
from orchestration.remedies import LONGEST_WAIT_S, REMEDIES
from orchestration.steps import Backoff, End, FallBack, GiveUpWorker, Step
from persistence.records.outcome import Counters, Ending
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn

# How often a call may be held before its turn gives up. As each wait is longer than those before it, that is an hour or
# more: a line of turns in front of a slow quota moves, and must not be taken for one that does not.
MAX_HOLDS = 100
_FIRST_WAIT_S, _GROWTH, _LONGEST_FLOOR_S = 0.2, 1.2, 60.0
# With another model in the chain, this many holds running are enough.
_HOLDS_BESIDE_A_FALLBACK = 2
# Keys that are tried after another without an answer between them.
MAX_ROTATIONS = 32
MAX_REFRESHES = 2

# In an event: why a model that the turn can do without was not asked.
HELD = "held"

HOLDS = "holds"  # since the newest answer
ROTATIONS = "rotations"  # to another key, since the newest answer
_REFRESHES = "refreshes_of_key_"  # of one key, by its number, in the whole turn
_PAUSE = "held_ms_by_"  # the wait that is due, by what holds the call

_FAILED_BY = {
    HeldBy.COOLING_DOWN: (ExitReason.RATE_LIMITED, "its provider's rate limit"),
    HeldBy.OWN_LIMITS: (ExitReason.RATE_LIMITED, "requests_per_minute or tokens_per_minute of its provider"),
    HeldBy.ENDPOINT_DOWN: (ExitReason.PROVIDER_FAILED, "an endpoint that does not answer"),
    HeldBy.NO_USABLE_KEY: (ExitReason.PROVIDER_FAILED, "the want of a key that is accepted"),
}


def of(counters: Counters) -> Held | None:
    """What holds the next call, if anything does."""
    for by in HeldBy:
        waits_ms = counters.remedies.get(_PAUSE + by.value)
        if waits_ms is not None:
            return Held(by, waits_ms / 1000)
    return None


def next_step(turn: Turn, held: Held, *, has_fallback: bool, model: str) -> Step:
    """Rest in place for a short wait, leave the worker for a long one, or turn to another model.

    A turn that has not begun yet begins with another model at once: it has nothing to lose by it.
    """
    holds = turn.counters.remedies.get(HOLDS, 0)
    pause = min(max(held.wait_s, _floor_s(holds)), LONGEST_WAIT_S)
    is_short = pause <= turn.agent.retry_in_place_s
    if has_fallback:
        is_down = held.by in (HeldBy.ENDPOINT_DOWN, HeldBy.NO_USABLE_KEY)
        begins = held.by is HeldBy.COOLING_DOWN and turn.counters.iterations_used == 0 and not turn.counters.attempts
        if is_down or begins or not is_short or holds > _HOLDS_BESIDE_A_FALLBACK:
            return FallBack(turn.counters.model_index + 1)
    if holds > MAX_HOLDS:
        exit_reason, by = _FAILED_BY[held.by]
        told = f"The model {model} was held back {MAX_HOLDS} times running by {by}: resume the turn later."
        return End(Ending(exit_reason, message=told))
    return Backoff(pause) if is_short else GiveUpWorker(WaitingFor.RETRY, pause)


def _floor_s(holds: int) -> float:
    return min(_FIRST_WAIT_S * _GROWTH ** max(holds - 1, 0), _LONGEST_FLOOR_S)


def may_refresh(counters: Counters, key: int) -> bool:
    """Whether the key of this number may be fetched anew once more in this turn."""
    return counters.remedies.get(f"{_REFRESHES}{key}", 0) < MAX_REFRESHES


def held(counters: Counters, by: Held) -> Counters:
    """The counters of a turn whose call was held once more."""
    remedies = _without_pause(counters.remedies)
    remedies[HOLDS] = remedies.get(HOLDS, 0) + 1
    remedies[_PAUSE + by.by.value] = max(1, round(by.wait_s * 1000))
    return counters.with_remedies(remedies)


def rested(counters: Counters) -> Counters:
    """The counters of a turn that has rested, or was let through; the holds stay counted."""
    return counters.with_remedies(_without_pause(counters.remedies))


def with_another_key(
    counters: Counters, error: ErrorClass, advice: Advice, *, refreshed: int | None
) -> Counters | None:
    """The counters of a turn whose attempt failed for the key's sake and may be repeated at once with another one.

    None where that is not so. The attempt itself does not count: what bounds it are the rotations, and the refreshes of a
    key. `refreshed` is the number of a key that will be fetched anew. `counters` are those from before the attempt.
    """
    remedies = _without_pause(counters.remedies)
    if refreshed is not None:
        name = f"{_REFRESHES}{refreshed}"
    elif REMEDIES[error].rotates and advice.other_keys and remedies.get(ROTATIONS, 0) < MAX_ROTATIONS:
        name = ROTATIONS
    else:
        return None
    remedies[name] = remedies.get(name, 0) + 1
    rested = counters.with_remedies(remedies)
    # That a request was too large is not mended by a key; any other failure before this one has been rested for.
    is_refused = counters.last_error is not None and REMEDIES[ErrorClass(counters.last_error)].compresses
    return rested if is_refused else replace(rested, last_error=None, retry_after_s=None)


def answered(counters: Counters) -> Counters:
    """The counters once an answer came, or another model is asked: only the refreshes of keys stay counted."""
    between = (HOLDS, ROTATIONS)
    remedies = {name: n for name, n in _without_pause(counters.remedies).items() if name not in between}
    return counters.with_remedies(remedies)


def _without_pause(remedies: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in remedies.items() if not name.startswith(_PAUSE)}
