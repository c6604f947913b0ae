"""Turns and outcomes for the tests of the store, in one line each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from persistence import checkpoint, claims
from persistence.database import Database
from persistence.records.message import Block, Call, CallStatus, Effect, Message, Origin, Result, Role, Text
from persistence.records.outcome import CallState, ClosedCall, Counters, Ending, Event, ModelCall, News, Outcome
from persistence.records.status import ExitReason
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.support.workbench import Bench

LEASE = timedelta(seconds=10)
SLICE = timedelta(minutes=5)
USED = Usage(10, 2, 3, 4, 1)


def claim(database: Database, turn_id: UUID, worker: str = "worker-1", **how: Any) -> Turn:
    defaults: dict[str, Any] = {"lease": LEASE, "slice_": SLICE}
    return claims.claim(database, turn_id, worker=worker, **(defaults | how))


def claimed(bench: Bench, **settings: Any) -> Turn:
    """A turn that was submitted and claimed just now."""
    return claim(bench.database, bench.submit(**settings))


def store(bench: Bench, turn: Turn, outcome: Outcome) -> Turn:
    """The turn after the outcome, which is stored."""
    return turn.after(outcome, checkpoint.store(bench.database, turn, outcome, lease=LEASE))


def message(turn: Turn, role: Role, origin: Origin, *content: Block, iteration: int | None = None) -> Message:
    return Message(0, turn.id, turn.iteration if iteration is None else iteration, role, origin, content)


def model_call(turn: Turn, error: str | None = None, usage: Usage | None = USED) -> ModelCall:
    return ModelCall("scripted", "large", turn.iteration + 1, 0.25, error, usage, "req-1")


def call_state(n: int, effect: Effect = Effect.READS, status: CallStatus = CallStatus.OPEN) -> CallState:
    return CallState(f"c{n}", n, "look", effect, effect is Effect.READS, status)


def answer(turn: Turn, *effects: Effect, text: str = "") -> Outcome:
    """What a reply leaves: words, or calls c0, c1, … of these effects."""
    blocks = (Text(text),) if text or not effects else ()
    calls = tuple(Call(f"c{n}", "look", "{}") for n in range(len(effects)))
    return Outcome(
        replace(turn.counters, iterations_used=turn.counters.iterations_used + 1),
        messages=(message(turn, Role.ASSISTANT, Origin.MODEL, *blocks, *calls, iteration=turn.iteration + 1),),
        opened=tuple(call_state(n, effect) for n, effect in enumerate(effects)),
        model_call=model_call(turn),
        events=(Event("model.answered"),),
    )


def results(turn: Turn) -> Outcome:
    """What the tools of the newest answer leave, all at once."""
    blocks = [Result(c.call_id, "seen", CallStatus.SUCCEEDED) for c in turn.calls]
    return Outcome(
        turn.counters,
        messages=(message(turn, Role.TOOL, Origin.TOOL, *blocks),),
        closed=tuple(ClosedCall(c.call_id, CallStatus.SUCCEEDED, 0.5) for c in turn.calls),
        events=tuple(Event("tool.ended") for _ in turn.calls),
    )


def ending(turn: Turn, reason: ExitReason = ExitReason.FINAL_ANSWER, text: str = "Done.") -> Outcome:
    told = Event("turn.ended", {"status": reason.status.value, "exit_reason": reason.value})
    return Outcome(turn.counters, events=(told,), ending=Ending(reason, text))


def every_part(turn: Turn) -> Outcome:
    """An outcome with everything that a statement can write, as an ending."""
    made = answer(turn, Effect.READS, Effect.ONCE)
    counters = Counters(1, True, 2, "timeout", 1.5, 1, {"empty": 1}, 1, True)
    last = ending(turn, ExitReason.INTERRUPTED_BY_USER)
    blocks = [Result(f"c{n}", "Not run.", CallStatus.NOT_RUN) for n in range(2)]
    return replace(
        made,
        counters=counters,
        messages=(*made.messages, message(turn, Role.TOOL, Origin.TOOL, *blocks, iteration=turn.iteration + 1)),
        opened=tuple(call_state(n, status=CallStatus.NOT_RUN) for n in range(2)),
        events=(*made.events, *last.events),
        ending=last.ending,
    )


def news_of(bench: Bench, turn: Turn, outcome: Outcome) -> News:
    return checkpoint.store(bench.database, turn, outcome, lease=LEASE)
