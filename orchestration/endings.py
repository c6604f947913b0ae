"""The outcome that ends a turn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestration import answers, history
from persistence.records import parts
from persistence.records.outcome import Ending, Outcome
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn

_ON_REQUEST = {
    ExitReason.INTERRUPTED_BY_USER: "The turn was interrupted on request.",
    ExitReason.INTERRUPTED_BY_PARENT: "The turn was interrupted with the turn that started it.",
    ExitReason.BATCH_INTERRUPTED: "The turn was interrupted with its batch.",
}


def interrupted(reason: ExitReason) -> Ending:
    """The ending of a turn that was asked to end."""
    return Ending(reason, message=_ON_REQUEST[reason])


def end(turn: Turn, ending: Ending, *, under_way: Collection[str] = ()) -> Outcome:
    """The outcome that ends a turn, whoever writes it: every open call is answered in the same statement.

    Of calls that are `under_way` it is not known what they did.
    """
    spent = ending.exit_reason is ExitReason.BUDGET_EXHAUSTED
    on_request = ending.exit_reason.status is TurnStatus.INTERRUPTED
    why = history.NOT_RUN_BUDGET if spent else history.NOT_RUN_INTERRUPTED if on_request else history.NOT_RUN_ENDED
    messages, closed = history.close_open_calls(turn, why, under_way)
    ending = with_words(ending, turn)
    counters = replace(turn.counters, pending=None)
    return Outcome(counters, messages=messages, closed=closed, events=(answers.ended(ending),), ending=ending)


def with_words(ending: Ending, turn: Turn) -> Ending:
    """`ending` with what there is of an answer that the turn was in the middle of, where it has no output of its own."""
    return ending if ending.output_text else replace(ending, output_text=parts.unfinished(turn.messages, turn.id))
