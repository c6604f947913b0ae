"""What a well-formed history is, and the answers that keep it so.

Only the newest assistant message of a live turn may have open calls; nothing follows it but their results, all at once,
in call order (promise P5).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from persistence.ids import new_id
from persistence.records.message import Block, Call, CallStatus, Message, Origin, Result, Role, Text, kept_result
from persistence.records.outcome import CallState, ClosedCall
from persistence.records.turn import Turn

UNKNOWN_OUTCOME = (
    "Outcome unknown: the worker was lost while this call was under way. It may or may not have had its effect. "
    "Check before you repeat it."
)
NOT_RUN_TWICE = (
    "Not run: your reply holds this call twice under one id, and it was made once. If it is meant to happen twice, make "
    "it again."
)
NOT_RUN_INTERRUPTED = "Not run: the turn was interrupted before this call started."
NOT_RUN_ENDED = "Not run: the turn ended before this call started."
NOT_RUN_BUDGET = "Not run: the iteration budget is used up."
GRACE_NOTICE = (
    "You have used all your iterations. This is your last reply: no tool call in it will run. Give the best answer you "
    "can from what you have, and say what is left undone."
)
GRACE_TOOLS_NOTICE = (
    "You have used all your iterations. This is your last reply. Calls in it will still run, but you will not see "
    "their results unless the turn is resumed."
)
LAST_REPLY_NOTICE = "You have used all your iterations. This is your last reply: no tool call in it will run."
# To the model's own words, since the newest models take no beginning of an answer that they are to go on with.
CONTINUE_NOTICE = (
    "Your reply was cut at the output limit. Go on exactly where it stopped, in the middle of a word if it did: both parts "
    "are joined as they are. Repeat nothing of it, and write nothing before or after it."
)
MISFIT_NOTICE = (
    "Your answer does not have the form that was asked for: {misfit}. Send the whole answer again, as one JSON value that "
    "fits the schema and nothing else."
)
RESUMED_NOTICE = "The turn was resumed with a larger budget. Go on where you stopped."

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def groups(calls: Iterable[CallState]) -> list[list[CallState]]:
    """Neighbours that may run side by side together, every other call alone, in call order."""
    grouped: list[list[CallState]] = []
    for call in calls:
        if call.is_parallel and grouped and grouped[-1][-1].is_parallel:
            grouped[-1].append(call)
        else:
            grouped.append([call])
    return grouped


def in_doubt(turn: Turn) -> tuple[CallState, ...]:
    """The calls that an earlier owner marked as started and never answered: their effect may have happened."""
    return tuple(c for c in turn.calls if c.status is CallStatus.STARTED and c.started_token != turn.fencing_token)


def results_message(turn: Turn, results: Sequence[Result]) -> Message:
    """The one message that answers all calls of the newest assistant message, in call order."""
    by_id = {r.id: r for r in results}
    ordered = tuple(by_id[c.call_id] for c in turn.calls)
    return message(turn, Role.TOOL, Origin.TOOL, ordered)


def kept_results(turn: Turn) -> list[Result]:
    """The results that are in already, of calls whose siblings are not."""
    return [kept_result(c.call_id, c.result or "", c.status) for c in turn.calls if c.is_answered]


def close_open_calls(
    turn: Turn, why: str, under_way: Collection[str] = ()
) -> tuple[tuple[Message, ...], tuple[ClosedCall, ...]]:
    """What an ending appends: an answer for every call without one; nothing if there is none.

    `under_way` are calls that may have started, beside those that an earlier owner left behind.
    """
    if not turn.calls:
        return (), ()
    doubtful = {*under_way, *(c.call_id for c in turn.calls if c.started_token not in (None, turn.fencing_token))}
    results, closed = kept_results(turn), [ClosedCall(c.call_id, c.status) for c in turn.calls if c.is_answered]
    for call in turn.calls:
        if call.is_answered:
            continue
        status = CallStatus.UNKNOWN if call.call_id in doubtful else CallStatus.NOT_RUN
        text = UNKNOWN_OUTCOME if status is CallStatus.UNKNOWN else why
        results.append(Result(call.call_id, text, status))
        closed.append(ClosedCall(call.call_id, status))
    return (results_message(turn, results),), tuple(closed)


def notice(turn: Turn, text: str, *, iteration: int | None = None) -> Message:
    """A sentence of ours to the model, in a user message."""
    made = message(turn, Role.USER, Origin.NOTICE, (Text(text),))
    return made if iteration is None else replace(made, iteration=iteration)


def message(turn: Turn, role: Role, origin: Origin, content: tuple[Block, ...]) -> Message:
    """A message of the turn's present iteration; the checkpoint draws its seq."""
    return Message(0, turn.id, turn.iteration, role, origin, content)


def doubled(content: Iterable[Block]) -> frozenset[int]:
    """The places, among the calls of a reply, of those that came before in it: under the same id, to the letter."""
    calls = [block for block in content if isinstance(block, Call)]
    keys = [(call.id, call.name, call.arguments) for call in calls]
    return frozenset(n for n, key in enumerate(keys) if key[0] and key in keys[:n])


def with_unique_ids(
    content: tuple[Block, ...], messages: Iterable[Message], hidden: Collection[str] = ()
) -> tuple[Block, ...]:
    """`content` with an id of ours for every call whose own is missing, unusable or taken: by one of the messages, or
    by one that is `hidden`.

    Providers refuse an id that is used twice in one request, and
    some servers number their calls anew in every reply.
    """
    if not any(isinstance(block, Call) for block in content):
        return content
    taken = {*hidden} | {b.id for m in messages if m.role is Role.ASSISTANT for b in m.content if isinstance(b, Call)}
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, Call):
            if not _ID.fullmatch(block.id) or block.id in taken:
                block = replace(block, id=f"call_{new_id().hex}", native=None)
            taken.add(block.id)
        blocks.append(block)
    return tuple(blocks)
