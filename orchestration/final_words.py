"""What follows a reply without calls that is not the last word: cut, paused, or not of the form that was asked for. Pure.

The reply is paid for, so it is stored as it arrives, in one outcome with what the model is told about it and with the
counter that bounds how often: a crash loses no part of an answer and buys none twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestration import history
from orchestration.costs import ended_as
from orchestration.errors import ErrorClass
from orchestration.ports import Finish
from orchestration.structured_output import json_text, misfit
from persistence.records import parts
from persistence.records.agent import Grace
from persistence.records.message import Message, Opaque
from persistence.records.outcome import Counters, Ending, Event, Outcome
from persistence.records.status import ExitReason
from persistence.records.turn import Turn

# Among the counters of remedies: how often the answer that is being given was cut, and how often its provider paused;
# and how often, in the whole turn, an answer did not fit its schema.
CONTINUATIONS, PAUSES, REPAIRS = "continuations", "pauses", "output_repairs"
# Why an answer goes on that was cut because the window of its model was full; it is counted with those that were cut.
FULL_WINDOW = "full_window"
# A provider that runs tools of its own pauses now and then; one that does nothing else is not waited for.
MAX_PAUSES = 10

_PARTS = {Finish.LENGTH: parts.Why.LENGTH, Finish.WINDOW: parts.Why.WINDOW, Finish.PAUSE: parts.Why.PAUSE}


@dataclass(frozen=True, slots=True)
class _Retry:
    """How the turn goes on after a reply: counted as `counter`, at most so often, else it ends.

    `error` is what stands in the way of that, and has to be mended first; `why` is the reason for people, where that is
    not what is counted.
    """

    counter: str
    most: int
    notice: str | None
    ending: Ending
    error: ErrorClass | None = None
    why: str | None = None


def marked(message: Message, finish: Finish) -> Message:
    """The reply as it is stored: one without calls that was stopped in its middle is a part of an answer."""
    why = _PARTS.get(finish)
    if why is parts.Why.PAUSE and not any(isinstance(b, Opaque) for b in message.content):
        why = (
            parts.Why.LENGTH
        )  # there is no tool of the provider's to go on with, and words alone it does not take back
    return message if why is None or message.calls else parts.part(message, why)


def counted(remedies: dict[str, int], message: Message) -> dict[str, int]:
    """The counters once `message` is stored: those of an answer's parts begin anew when it is whole."""
    return remedies if message.is_part else {k: n for k, n in remedies.items() if k not in (CONTINUATIONS, PAUSES)}


def followed(turn: Turn, answer: Outcome, message: Message) -> Outcome:
    """`answer`, which stores `message`, with whatever has to follow it: nothing, words of ours, or the turn's ending.

    Whatever follows is asked for in an iteration of its own. The last of them grants the grace call, as ever.
    """
    retry = _retry(turn, message)
    if retry is None:
        return answer
    counters, agent = answer.counters, turn.agent
    tried = counters.remedies.get(retry.counter, 0)
    is_spent = counters.iterations_used >= turn.iterations_max
    if tried >= retry.most:
        return ended_as(answer, retry.ending)
    if is_spent and (counters.grace_used or agent.grace is Grace.OFF):
        return ended_as(answer, replace(retry.ending, exit_reason=ExitReason.BUDGET_EXHAUSTED))
    said = [retry.notice] if retry.notice else []
    if is_spent and retry.notice:
        said.append(history.LAST_REPLY_NOTICE if agent.grace is Grace.ANSWER else history.GRACE_TOOLS_NOTICE)
    notices = tuple(history.notice(turn, text, iteration=message.iteration) for text in ("\n\n".join(said),) if text)
    told = Event("answer.goes_on", {"why": retry.why or retry.counter, "n": tried + 1, "most": retry.most})
    return replace(
        answer,
        counters=_once_more(counters, retry, grants_grace=is_spent),
        messages=(*answer.messages, *notices),
        events=(*answer.events, told, *((Event("budget.grace"),) if is_spent else ())),
    )


def _retry(turn: Turn, message: Message) -> _Retry | None:
    """What is still wanted of the model; None where `message` ends its answer."""
    text = parts.answer((*turn.messages, message), turn.id)
    if parts.is_paused(message):
        told = f"The provider paused the answer {MAX_PAUSES} times, and it is not whole."
        return _Retry(PAUSES, MAX_PAUSES, None, Ending(ExitReason.OUTPUT_TRUNCATED, text, told))
    if parts.fills_window(message):
        told = "The answer was cut where the model's context window was full."
        ending = Ending(ExitReason.OUTPUT_TRUNCATED, text, told)
        most, error = turn.agent.continuations, ErrorClass.CONTEXT_OVERFLOW
        return _Retry(CONTINUATIONS, most, history.CONTINUE_NOTICE, ending, error, FULL_WINDOW)
    if message.is_part:
        told = "The answer was cut at the output limit."
        ending = Ending(ExitReason.OUTPUT_TRUNCATED, text, told)
        return _Retry(CONTINUATIONS, turn.agent.continuations, history.CONTINUE_NOTICE, ending)
    wrong = does_not_fit(turn, text)
    if wrong is None:
        return None
    told = f"The answer does not fit the agent's output_schema: {wrong}."
    ending = Ending(ExitReason.OUTPUT_INVALID, json_text(text), told)
    return _Retry(REPAIRS, turn.agent.output_repairs, history.MISFIT_NOTICE.format(misfit=wrong), ending)


def does_not_fit(turn: Turn, text: str) -> str | None:
    """What is wrong with an answer that should have the form of the agent's schema."""
    schema = turn.agent.output_schema
    return None if schema is None else misfit(schema, text)


def _once_more(counters: Counters, retry: _Retry, *, grants_grace: bool) -> Counters:
    remedies = {**counters.remedies, retry.counter: counters.remedies.get(retry.counter, 0) + 1}
    last_error = counters.last_error if retry.error is None else retry.error.value
    again = replace(counters, grace_used=counters.grace_used or grants_grace, last_error=last_error)
    return again.with_remedies(remedies)
