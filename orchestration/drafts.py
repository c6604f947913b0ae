"""Which drafts a turn still needs before its model is asked. Pure.

A draft is a message as soon as it has arrived, marked in its `wire`; what is still out is kept in the turn's counters, as
one bit for each of the agent's references.
"""

from __future__ import annotations

from dataclasses import replace

from orchestration import history
from persistence.records import parts
from persistence.records.agent import ReferencesEvery
from persistence.records.drafts import DRAFT, OPEN
from persistence.records.message import Message
from persistence.records.outcome import Counters
from persistence.records.turn import Turn

# The iteration that drafts were last asked for, counted from 1.
FOR = "drafts_for"


def open_references(turn: Turn) -> tuple[int, ...]:
    """The places of the references whose draft is still out."""
    mask = turn.counters.remedies.get(OPEN, 0)
    return tuple(n for n in range(len(turn.agent.references)) if mask >> n & 1)


def are_due(turn: Turn, *, is_grace: bool) -> bool:
    """Whether the references are to be asked now. They are not for the last call, nor in the middle of an answer."""
    agent, iteration = turn.agent, turn.iteration
    if not agent.references or is_grace or turn.counters.remedies.get(FOR, 0) == iteration + 1:
        return False
    if agent.references_every is ReferencesEvery.TURN and iteration:
        return False
    if parts.is_unfinished(turn.messages, turn.id):  # what a paused one wants back is not to be followed by anything
        return False
    # Where a resume has forgotten the counters, the drafts themselves are there.
    return not any(m.turn_id == turn.id and m.iteration == iteration and _is_draft(m) for m in turn.messages)


def asked(turn: Turn, *, none: bool = False) -> Counters:
    """The counters of a turn that is about to ask its references, or that does without any."""
    mask = 0 if none else (1 << len(turn.agent.references)) - 1
    return turn.counters.with_remedies({**turn.counters.remedies, FOR: turn.iteration + 1, OPEN: mask})


def settled(turn: Turn, reference: int) -> Counters:
    """The counters once this reference has given its draft, or none."""
    mask = turn.counters.remedies.get(OPEN, 0) & ~(1 << reference)
    return turn.counters.with_remedies({**turn.counters.remedies, OPEN: mask})


def notice(turn: Turn, model: str, text: str) -> Message:
    """What the model is told of a draft: a message like any other notice, never a part of the system prompt."""
    return replace(history.notice(turn, text), wire={DRAFT: model})


def _is_draft(message: Message) -> bool:
    return message.wire is not None and DRAFT in message.wire
