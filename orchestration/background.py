"""Answers that a provider makes by itself: started, kept as pending, and looked for until they are there.

What is pending is bought. So the checkpoint has its id before anybody waits for it, any worker fetches it, a look that
failed says nothing of it, and only what will never come is bought again. Whoever gives one up tells its provider.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast
from uuid import UUID

from orchestration import answers, costs, holding, ownership, remedies
from orchestration.arrivals import Arrivals
from orchestration.attempts import Asked
from orchestration.carrying import KEY_S, SLACK_S, Carried
from orchestration.decide import PAST_DEADLINE
from orchestration.errors import AnswerLost, CallInterrupted, ConfigError, ErrorClass, ModelError, OwnFault
from orchestration.ports import BackgroundClient, KeyedClient, ModelClient, OnText, Reply, Started, TimeLimits
from orchestration.runtime import Runtime
from orchestration.steps import GiveUpWorker
from orchestration.stopping import TELL_S
from persistence.records.outcome import Ending, Event, Outcome
from persistence.records.pending import Pending
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn
from persistence.records.usage import Usage

log = logging.getLogger(__name__)

# A tenth of the answer's age is between two looks: whatever it takes, it is found a tenth later, and is not asked for
# hundreds of times.
FIRST_PAUSE_S, LONGEST_PAUSE_S, _PAUSE_SHARE = 0.5, 60.0, 0.1
# How many looks in a row may fail. They cost nothing, and the answer does: an outage of minutes is sat out.
MOST_FAILED_LOOKS = 10
# One look takes no longer than this, whatever the call may.
LOOK_S = 30.0


@dataclass(frozen=True, slots=True)
class Look:
    """One look for the pending answer of a turn: who is asked, and what becomes of the answer."""

    client: BackgroundClient
    pending: Pending
    attempt: answers.Attempt
    answered: Callable[[Reply, float], Outcome]
    on_text: OnText
    limits: TimeLimits

    @property
    def started(self) -> Started:
        return _started(self.pending)

    @property
    def asked(self) -> Asked:
        return replace(self.attempt.asked, key_label=self.pending.key_label)


def client_of(client: ModelClient) -> BackgroundClient | None:
    """`client`, where its provider makes answers by itself and is configured for it."""
    # Not isinstance: that costs 15 us, and the question is asked before each call.
    return cast("BackgroundClient", client) if getattr(client, "is_background", False) else None


def started(attempt: answers.Attempt, found: Started, cut: Ending | None, carried: Carried) -> Outcome:
    """An attempt that has begun: what is to be kept before anybody waits for it."""
    pending = Pending(
        attempt.provider,
        attempt.model,
        found.id,
        attempt.iteration,
        attempt.is_grace,
        found.key,
        cut_as=cut.exit_reason if cut else None,
        cut_message=cut.message if cut else None,
    )
    carried.look_in(found.look_again_s or FIRST_PAUSE_S)
    told = Event(
        "model.started",
        {"iteration": pending.iteration, "model": f"{pending.provider}:{pending.model}", "id": pending.id},
    )
    return Outcome(replace(attempt.turn.counters, pending=pending), events=(told,))


def fetch(look: Look, carried: Carried) -> Outcome | GiveUpWorker | Ending:
    """Sit a part of the pause out, or look once. A long pause is for a wait without a worker."""
    if carried.seconds_left <= 0:
        return PAST_DEADLINE
    turn = look.attempt.turn
    if (pause := carried.look_due_in_s) > 0:
        if pause > turn.agent.retry_in_place_s:
            return GiveUpWorker(WaitingFor.RETRY, pause)
        carried.begin_step(pause + SLACK_S)
        carried.rest(min(pause, carried.seconds_left))
        return Outcome(turn.counters, rests=True)
    limits = replace(look.limits, call_s=min(look.limits.call_s, LOOK_S, carried.seconds_left))
    carried.begin_step(KEY_S + limits.connect_s + limits.call_s + SLACK_S)
    asked_at = time.monotonic()
    try:
        found = look.client.fetch(look.started, limits=limits, stop=carried.stop, on_text=look.on_text)
    except AnswerLost as error:
        return _with_key(look.attempt.failed(error, carried.pending_age_s), look.pending)
    except ModelError as error:
        if error.error is ErrorClass.AUTH and isinstance(look.client, KeyedClient):
            look.client.keys.refresh(
                look.pending.key, used_at=asked_at
            )  # an answer may outlive the key that it was bought with
        return _failed_look(look, error, carried)
    except CallInterrupted:
        return Outcome(turn.counters, rests=True)  # whoever decides next knows why
    except OwnFault as fault:
        if fault.usage is not None:  # else its provider may say what it came to, when it is told
            carried.bought = look.asked.broken_off(fault.usage, carried.pending_age_s)
        raise
    if isinstance(found, Started):
        return _at_work(look, found, carried)
    carried.bought = look.asked.answered(found, carried.pending_age_s)
    outcome = _with_key(look.answered(found, carried.pending_age_s), look.pending)
    if outcome.model_call is not None and outcome.model_call.error is None:
        outcome = replace(outcome, counters=holding.answered(outcome.counters))
    return costs.Allowance(None, _cut(look.pending)).applied_to(outcome, turn)


def let_go(turn: Turn, outcome: Outcome, carried: Carried, runtime: Runtime) -> Outcome:
    """`outcome`, and where it ends the turn without the answer that is pending: its provider told, and what it may cost.

    This is before the ending is stored and not after it: so the ending has the cost of an answer that was finished
    meanwhile, and should we die in between, the next owner ends the turn for the same reason and tells it again. But a
    provider that is slow to hear of it, or a key that is slow to come, does not hold the ending up.
    """
    pending = turn.counters.pending
    if pending is None or outcome.ending is None or outcome.model_call is not None:
        return outcome
    ownership.prove(carried, runtime)
    age_s = carried.pending_age_s
    usage, events = _tell(pending, carried, runtime.models)
    attempt = answers.Attempt(turn, pending.provider, pending.model, pending.is_grace)
    call = replace(attempt.asked.interrupted(age_s), usage=usage)
    counters = replace(outcome.counters, pending=None)
    given_up = replace(outcome, counters=counters, model_call=call, events=(*events, *outcome.events))
    return _with_key(given_up, pending)


def _at_work(look: Look, found: Started, carried: Carried) -> Outcome:
    """It is still being made: look again later, or give it up at the limit of the call."""
    turn, age_s = look.attempt.turn, carried.pending_age_s
    left_s = look.limits.call_s - age_s
    if left_s <= 0:
        why = f"{look.pending.provider}: no whole answer within {look.limits.call_s:g} s"
        return _given_up(look, ModelError(ErrorClass.CALL_TIMEOUT, why), carried)
    # No less than the provider asks for, and more as time goes by: a worker is not held for hours by short pauses.
    pause = max(found.look_again_s or FIRST_PAUSE_S, min(age_s * _PAUSE_SHARE, LONGEST_PAUSE_S))
    carried.look_in(min(pause, left_s))
    if not turn.counters.remedies.get(answers.FAILED_LOOKS):
        return Outcome(turn.counters, rests=True)
    return Outcome(answers.looked(turn.counters, 0))


def _failed_look(look: Look, error: ModelError, carried: Carried) -> Outcome:
    """Nobody knows how the answer stands: look again, after a pause that grows, and only so often in a row."""
    turn, agent = look.attempt.turn, look.attempt.turn.agent
    tried = turn.counters.remedies.get(answers.FAILED_LOOKS, 0) + 1
    left_s = look.limits.call_s - carried.pending_age_s
    if tried >= MOST_FAILED_LOOKS or left_s <= 0:
        return _given_up(look, error, carried)
    pause = remedies.wait_s(turn.id, tried, base_s=agent.retry_base_s, retry_after_s=error.retry_after_s)
    carried.look_in(min(pause, left_s))
    told = Event(
        "model.look_failed",
        {
            "provider": look.pending.provider,
            "model": look.pending.model,
            "error": error.error.value,
            "status": error.status,
            "look": tried,
        },
    )
    return Outcome(answers.looked(turn.counters, tried), events=(told,))


def _given_up(look: Look, error: ModelError, carried: Carried) -> Outcome:
    """A failed attempt: the answer will not be had. It may be billed all the same, whatever the look was refused with."""
    usage, events = _tell(look.pending, carried, lambda _provider: look.client)
    lost = AnswerLost(error.error, str(error), retry_after_s=error.retry_after_s, usage=usage)
    outcome = look.attempt.failed(lost, carried.pending_age_s)
    return _with_key(replace(outcome, events=(*events, *outcome.events)), look.pending)


def _tell(
    pending: Pending, carried: Carried, models: Callable[[str], ModelClient]
) -> tuple[Usage | None, tuple[Event, ...]]:
    """Tell the provider that nobody wants the answer. What it came to, if that is said; an event where it was not told.

    Or not in time: then it is being told in a thread of its own, as long as the key and the call may take.
    """
    carried.begin_step(TELL_S + SLACK_S)
    telling = Arrivals([partial(_telling, pending, carried.turn.id, models)])
    try:
        usage, why = telling.next(within_s=TELL_S)
    except TimeoutError:
        usage, why = None, ErrorClass.CALL_TIMEOUT.value
    if why is None:
        return usage, ()
    told = {"provider": pending.provider, "model": pending.model, "id": pending.id, "error": why}
    return None, (Event("model.not_interrupted", told),)


def _telling(pending: Pending, turn_id: UUID, models: Callable[[str], ModelClient]) -> tuple[Usage | None, str | None]:
    """What the answer came to, if that is said, or why the provider could not be told. Never raises."""
    try:
        client = models(pending.provider)
        if not isinstance(client, BackgroundClient):
            raise ConfigError(f"the provider {pending.provider} keeps no answers any more")
        return client.interrupt(_started(pending)), None
    except ModelError as error:
        why = error.error.value
    except ConfigError:
        why = answers.UNFIT_WORKER
    except Exception:  # a fault of ours: without the ending that waits for this, the turn would be tried for ever
        log.exception("turn.internal_error", extra={"turn_id": str(turn_id)})
        why = ExitReason.INTERNAL_ERROR.value
    log.warning("model.not_interrupted", extra={"turn_id": str(turn_id), "error": why})
    return None, why


def _with_key(outcome: Outcome, pending: Pending) -> Outcome:
    """`outcome`, whose record says which key the answer was started with."""
    call = outcome.model_call
    return outcome if call is None else replace(outcome, model_call=replace(call, key_label=pending.key_label))


def _started(pending: Pending) -> Started:
    return Started(pending.id, key=pending.key)


def _cut(pending: Pending) -> Ending | None:
    return None if pending.cut_as is None else Ending(pending.cut_as, message=pending.cut_message)
