"""Turns in memory, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from persistence.records.agent import AgentSettings
from persistence.records.message import Block, Call, CallStatus, Effect, Message, Origin, Role, Text
from persistence.records.outcome import CallState, Counters
from persistence.records.status import TurnStatus
from persistence.records.turn import Turn
from persistence.records.usage import Usage

TURN, SESSION, TENANT, OTHER = (UUID(int=n) for n in range(1, 5))
TOKEN = 7


def message(role: Role, *content: Block, origin: Origin | None = None, seq: int = 0, iteration: int = 1) -> Message:
    origins = {Role.USER: Origin.USER, Role.ASSISTANT: Origin.MODEL, Role.TOOL: Origin.TOOL}
    return Message(seq, TURN, iteration, role, origin or origins[role], content)


def asked() -> Message:
    return message(Role.USER, Text("Do it."), seq=1, iteration=0)


def said(text: str = "Done.", *calls: str) -> Message:
    return message(Role.ASSISTANT, Text(text), *(Call(c, "look", "{}") for c in calls), seq=2)


def call(
    call_id: str,
    effect: Effect = Effect.READS,
    status: CallStatus = CallStatus.OPEN,
    *,
    parallel: bool | None = None,
    token: int | None = None,
    result: str | None = None,
) -> CallState:
    side_by_side = effect is Effect.READS if parallel is None else parallel
    return CallState(call_id, 0, "look", effect, side_by_side, status, token, result)


def turn(*messages: Message, calls: Sequence[CallState] = (), counters: Counters | None = None, **changes: Any) -> Turn:
    """A running turn under token 7, with a budget of 10 iterations."""
    agent = AgentSettings("test", "scripted:large")
    settings = {k: changes.pop(k) for k in list(changes) if k in AgentSettings.__dataclass_fields__}
    made = Turn(
        id=TURN,
        session_id=SESSION,
        tenant_id=TENANT,
        queue="interactive",
        agent=replace(agent, **settings),
        system_prompt="",
        status=TurnStatus.RUNNING,
        exit_reason=None,
        fencing_token=TOKEN,
        position=3,
        counters=counters or Counters(),
        iterations_max=10,
        max_tokens_total=None,
        max_cost_usd=None,
        usage=Usage(),
        last_seq=len(messages) or 1,
        inbox_n=0,
        inbox_read=0,
        resumes=0,
        is_interrupted=False,
        is_slice_over=False,
        is_past_deadline=False,
        messages=messages or (asked(),),
        calls=tuple(calls),
    )
    return replace(made, **changes)


def acting(*calls: CallState, **changes: Any) -> Turn:
    """A turn whose newest answer asked for these calls."""
    return turn(asked(), said("", *(c.call_id for c in calls)), calls=calls, **changes)
