"""The agent loop: decide the next step, perform it, keep what came of it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from itertools import count
from uuid import UUID

from orchestration import background, costs
from orchestration.attempts import INTERNAL_ERROR
from orchestration.carrying import Carried
from orchestration.context_size import size_of
from orchestration.decide import decide, model_in_use
from orchestration.endings import end
from orchestration.perform import perform
from orchestration.runtime import Runtime
from orchestration.steps import RunTools
from persistence import checkpoint, claims, leases, system_prompts
from persistence.database import patiently
from persistence.errors import InboxGrew, LeaseHeld, LeaseLost, NeedsNewerWorker, StoreError, Unreadable
from persistence.records.outcome import Ending, ModelCall, Outcome
from persistence.records.status import ExitReason
from persistence.records.turn import Turn

log = logging.getLogger(__name__)

_FAULT = Ending(ExitReason.INTERNAL_ERROR, message="Perdure failed on this turn; the worker's log says why.")


def run_turn(turn_id: UUID, runtime: Runtime, *, alone: bool = False) -> Turn:
    """Carry a turn until it ends, waits or is handed back, from wherever its last checkpoint left it.

    May be called at any time, by any number of workers: one of them gets the lease. `alone` says that this process
    carries nothing else, as a suspect needs. Raises LeaseHeld when the turn is not ours to carry, LeaseLost when it
    stops being ours, DatabaseUnavailable when the process had to leave before Postgres came back.
    """
    if runtime.registry.is_draining:
        raise LeaseHeld(f"turn {turn_id} is left to another worker: this one is leaving")
    with runtime.registry.claiming(turn_id):
        carried = _claim(turn_id, runtime, alone=alone)
        runtime.registry.add(carried)
    turn = carried.turn
    try:
        runtime.on_claimed(turn.id)
        while turn.is_ours_to_move:
            turn = advance(turn, carried, runtime)
            carried.move(turn)
            if carried.is_lost and turn.is_ours_to_move:
                # Given up by its lease keeper (a step that outlasted its limit), yet nobody has taken it: every further
                # call would be stopped at once, and every checkpoint would keep the lease.
                leases.hand_back(runtime.database, carried.held)
                raise LeaseLost(f"turn {turn.id} was given up")
        return turn
    finally:
        if carried.drafts is not None:  # nobody will keep them
            carried.stop.set()
        runtime.registry.remove(carried)


def _claim(turn_id: UUID, runtime: Runtime, *, alone: bool) -> Carried:
    """Claim and load the turn, waiting for Postgres. A claim whose answer was lost is taken over by the next try: to leave
    it to the reaper would count a crash against the turn."""
    tries = count()

    def attempt() -> Carried:
        asked_at = time.monotonic()
        turn = claims.claim(
            runtime.database,
            turn_id,
            worker=runtime.worker,
            lease=runtime.lease,
            slice_=runtime.slice_,
            alone=alone,
            workspace_id=runtime.workspace_id,
            again=next(tries) > 0 and runtime.registry.get(turn_id) is None,
        )
        if not turn.is_lost_too_often:  # what else may kill a worker
            turn = system_prompts.restored(runtime.database, turn)
        return Carried(turn, asked_at=asked_at, alone=alone)

    try:
        return patiently(attempt, give_up=lambda: runtime.registry.is_draining)
    except NeedsNewerWorker as error:
        log.warning("turn.needs_newer_worker", extra={"turn_id": str(turn_id), "reason": str(error)})
        raise
    except Unreadable:
        log.exception("turn.unreadable", extra={"turn_id": str(turn_id)})
        raise


def advance(turn: Turn, carried: Carried, runtime: Runtime) -> Turn:
    """Take exactly one step and keep what came of it."""
    under_way: tuple[str, ...] = ()
    carried.bought = None
    try:
        step = decide(turn, carried.signals)
        under_way = step.call_ids if isinstance(step, RunTools) else ()
        outcome = background.let_go(turn, perform(step, turn, carried, runtime), carried, runtime)
        if outcome.rests:
            return turn.rested()
        carried.bought = outcome.model_call
        booked = costs.booked(turn, outcome, model_in_use(turn), lambda: size_of(turn).tokens, runtime.prices)
        return keep(turn, booked, carried, runtime)
    except StoreError:
        raise
    except Exception:  # a fault of ours must end the turn by name, not the process that carries 149 others
        log.exception("turn.internal_error", extra=_names(turn))
    try:
        return _end_after_fault(turn, under_way, carried.bought, carried, runtime)
    except StoreError:
        raise
    except Exception:
        if carried.bought is None:
            raise
        # What its provider tells of it may be what cannot be stored: it is booked as if nothing had been told.
        log.exception("turn.internal_error", extra=_names(turn))
        bought = replace(carried.bought, usage=None, request_id=None)
        return _end_after_fault(turn, under_way, bought, carried, runtime)


def _end_after_fault(
    turn: Turn, under_way: tuple[str, ...], bought: ModelCall | None, carried: Carried, runtime: Runtime
) -> Turn:
    ending = end(turn, _FAULT, under_way=under_way)
    if bought is not None:
        ending = replace(ending, model_call=replace(bought, error=bought.error or INTERNAL_ERROR))
    outcome = background.let_go(turn, ending, carried, runtime)
    booked = costs.booked(turn, outcome, model_in_use(turn), lambda: size_of(turn).tokens, runtime.prices)
    return keep(turn, booked, carried, runtime)


def _names(turn: Turn) -> dict[str, object]:
    return {"turn_id": str(turn.id), "fencing_token": turn.fencing_token}


def keep(turn: Turn, outcome: Outcome, carried: Carried, runtime: Runtime) -> Turn:
    """Make the outcome durable, waiting for Postgres as long as it takes: a turn never goes on without it."""
    carried.begin_step(None)

    def store() -> Turn:
        asked_at = time.monotonic()
        news = checkpoint.store(runtime.database, turn, outcome, lease=runtime.lease)
        carried.confirm(asked_at)
        return turn.after(outcome, news)

    try:
        return patiently(store, give_up=runtime.registry.patience(carried))
    except InboxGrew as grown:
        turn = replace(turn, inbox_n=grown.inbox_n)
        # An answer that was paid for is kept as it is, and so is the ending after a fault of ours, whose step must not run
        # again; anything else is decided again with the news in view.
        is_final = outcome.model_call is not None or _is_fault(outcome.ending)
        return keep(turn, outcome, carried, runtime) if is_final else turn


def _is_fault(ending: Ending | None) -> bool:
    return ending is not None and ending.exit_reason is _FAULT.exit_reason
