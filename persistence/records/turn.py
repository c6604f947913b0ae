"""A turn, what a step leaves behind, and the one method that moves a turn on in memory: `Turn.after`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from persistence.records.agent import AgentSettings
from persistence.records.compression import Compression, Weight, shown
from persistence.records.message import CallStatus, Effect, Message, Role
from persistence.records.spending import Estimate, Spending
from persistence.records.usage import Usage


class TurnStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def is_ending(self) -> bool:
        return self not in (TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING)


class ExitReason(StrEnum):
    """Why a turn ended: a closed list, stored."""

    FINAL_ANSWER = "final_answer"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TOKEN_CAP = "token_cap"
    COST_CAP = "cost_cap"
    DEADLINE = "deadline"
    OUTPUT_TRUNCATED = "output_truncated"
    TOOL_LOOP = "tool_loop"
    INTERRUPTED_BY_USER = "interrupted_by_user"
    INTERRUPTED_BY_PARENT = "interrupted_by_parent"
    BATCH_INTERRUPTED = "batch_interrupted"
    PROVIDER_FAILED = "provider_failed"
    RATE_LIMITED = "rate_limited"
    REFUSED = "refused"
    EMPTY_RESPONSE = "empty_response"
    INVALID_TOOL_CALL = "invalid_tool_call"
    TOOL_FAILING = "tool_failing"
    CONTEXT_OVERFLOW = "context_overflow"
    COMPRESSION_FAILED = "compression_failed"
    OUTPUT_INVALID = "output_invalid"
    CONFIG_ERROR = "config_error"
    WORKER_LOST = "worker_lost"
    WAIT_EXPIRED = "wait_expired"
    INTERNAL_ERROR = "internal_error"

    @property
    def status(self) -> TurnStatus:
        """The ending that this reason belongs to."""
        return _STATUS.get(self, TurnStatus.FAILED)


_STATUS = {
    ExitReason.FINAL_ANSWER: TurnStatus.COMPLETED,
    **dict.fromkeys(
        (
            ExitReason.BUDGET_EXHAUSTED,
            ExitReason.TOKEN_CAP,
            ExitReason.COST_CAP,
            ExitReason.DEADLINE,
            ExitReason.OUTPUT_TRUNCATED,
            ExitReason.TOOL_LOOP,
        ),
        TurnStatus.INCOMPLETE,
    ),
    **dict.fromkeys(
        (ExitReason.INTERRUPTED_BY_USER, ExitReason.INTERRUPTED_BY_PARENT, ExitReason.BATCH_INTERRUPTED),
        TurnStatus.INTERRUPTED,
    ),
}

# What a resume must raise before it can help.
CAPS = {
    ExitReason.BUDGET_EXHAUSTED: "iterations",
    ExitReason.TOKEN_CAP: "tokens",
    ExitReason.COST_CAP: "cost",
}


class WaitingFor(StrEnum):
    """What continues a turn that no worker holds."""

    APPROVAL = "approval"
    ANSWER = "answer"
    CALLER_TOOL = "caller_tool"
    CHILDREN = "children"
    TIME = "time"
    RETRY = "retry"
    PROVIDER_BATCH = "provider_batch"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class Counters:
    """The durable numbers that `decide` reads beside the history; written whole by every checkpoint.

    `attempts` counts failed attempts at the model in use since its last answer, `last_error` is the class of the newest
    one. `remedies` counts the rarer recoveries by name, so that each stays bounded over a crash.
    """

    iterations_used: int = 0
    grace_used: bool = False
    attempts: int = 0
    last_error: str | None = None
    retry_after_s: float | None = None
    model_index: int = 0
    remedies: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    crash_streak: int = 0
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class CallState:
    """A call of the newest assistant message, as `tool_calls` has it. `result` is that of a call whose siblings still run.

    `started_token` is that of the owner that marked it started, or, without a mark, of one that left in the middle of it.
    """

    call_id: str
    n: int
    name: str
    effect: Effect
    is_parallel: bool
    status: CallStatus
    started_token: int | None = None
    result: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.status not in (CallStatus.OPEN, CallStatus.STARTED)


@dataclass(frozen=True, slots=True)
class ClosedCall:
    """How a call ended. `result` is given where no message carries it yet."""

    call_id: str
    status: CallStatus
    duration_s: float | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One attempt of one model request, for the record. `error` is None for an answer, `usage` None when unknown.

    `iteration` is 0 for a call beside the iterations, such as that for a summary. `asked` is the name that the model was
    asked for by, where it answered under another. `may_be_billed` is False where nothing can have been bought.
    `cost_usd` is what the usage costs, `estimate` what stands in for a usage that was never told; `budget.booked` fills
    both in.
    """

    provider: str
    model: str
    iteration: int
    latency_s: float
    error: str | None = None
    usage: Usage | None = None
    request_id: str | None = None
    asked: str | None = None
    may_be_billed: bool = True
    cost_usd: Decimal | None = None
    estimate: Estimate | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether it may have been billed, and nobody told for how much."""
        return self.usage is None and self.may_be_billed

    @property
    def spending(self) -> Spending:
        guess = self.estimate
        return Spending(
            cost_usd=None if self.usage is None else self.cost_usd,
            unpriced_attempts=int(self.usage is not None and self.cost_usd is None),
            unknown_attempts=int(self.is_unknown),
            estimated_tokens=guess.tokens if guess else 0,
            estimated_cost_usd=guess.cost_usd if guess else None,
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """What is booked for the attempts that nobody saw the end of: so many, each at this estimate."""

    attempts: int
    estimate: Estimate

    @property
    def spending(self) -> Spending:
        each = self.estimate.cost_usd
        return Spending(
            estimated_tokens=self.attempts * self.estimate.tokens,
            estimated_cost_usd=None if each is None else self.attempts * each,
            lost_attempts=-self.attempts,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """A fact that clients read by cursor. The payload holds no text of users, models or tools."""

    type: str
    payload: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a turn: its reason, its output, and for a failure one sentence for a person."""

    exit_reason: ExitReason
    output_text: str = ""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Give the worker up until `waiting_for` happens, or `resume_in_s` seconds have passed."""

    waiting_for: WaitingFor
    resume_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step leaves behind, to be stored by one statement. Messages carry seq 0: the statement draws it.

    At most one of `ending`, `wait` and `hands_back` is set. `rests` alone means that nothing is to be stored: a backoff
    has been sat out.
    """

    counters: Counters
    messages: tuple[Message, ...] = ()
    opened: tuple[CallState, ...] = ()
    started: tuple[str, ...] = ()
    closed: tuple[ClosedCall, ...] = ()
    model_call: ModelCall | None = None
    lost: Lost | None = None
    events: tuple[Event, ...] = ()
    compression: Compression | None = None
    takes_inbox: bool = False
    rests: bool = False
    ending: Ending | None = None
    wait: Wait | None = None
    hands_back: bool = False

    @property
    def usage(self) -> Usage:
        """The tokens that a provider reported."""
        return (self.model_call and self.model_call.usage) or Usage()

    @property
    def spending(self) -> Spending:
        """What is to be added to the turn's own."""
        called = self.model_call.spending if self.model_call else Spending()
        return called + self.lost.spending if self.lost else called

    @property
    def leaves(self) -> bool:
        """Whether the worker stops carrying the turn."""
        return self.ending is not None or self.wait is not None or self.hands_back


@dataclass(frozen=True, slots=True)
class News:
    """What a checkpoint learned from the row that it wrote."""

    position: int
    last_seq: int
    inbox_n: int
    is_interrupted: bool
    is_slice_over: bool
    is_past_deadline: bool
    taken: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as its owner holds it: the row, the history that the model sees, and the calls that still need an answer.

    `compression` is the newest of the session; `hidden_call_ids` are those of the calls that it hides. `weight` is that
    of the newest answer's request, None where its provider did not count.
    """

    id: UUID
    session_id: UUID
    tenant_id: UUID
    queue: str
    agent: AgentSettings
    system_prompt: str
    status: TurnStatus
    exit_reason: ExitReason | None
    fencing_token: int
    position: int
    counters: Counters
    iterations_max: int
    max_tokens_total: int | None
    max_cost_usd: Decimal | None
    usage: Usage
    last_seq: int
    inbox_n: int
    inbox_read: int
    resumes: int
    is_interrupted: bool
    is_slice_over: bool
    is_past_deadline: bool
    messages: tuple[Message, ...]
    calls: tuple[CallState, ...]
    has_rested: bool = False
    claimed_position: int = 0
    crash_count: int = 0
    compression: Compression | None = None
    hidden_call_ids: frozenset[str] = frozenset()
    weight: Weight | None = None
    spending: Spending = field(default_factory=Spending)
    deadline_in_s: float | None = None

    @property
    def is_ours_to_move(self) -> bool:
        return self.status is TurnStatus.RUNNING

    @property
    def iteration(self) -> int:
        """The number of the newest iteration of this turn, 0 before the first answer."""
        newest = self.last_message
        return newest.iteration if newest is not None and newest.turn_id == self.id else 0

    @property
    def last_message(self) -> Message | None:
        return self.messages[-1] if self.messages else None

    @property
    def has_news(self) -> bool:
        """Whether the inbox holds something that the turn has not read."""
        return self.inbox_n > self.inbox_read

    def after(self, outcome: Outcome, news: News) -> Turn:
        """The turn once `outcome` is stored."""
        first = news.last_seq - len(news.taken) - len(outcome.messages) + 1
        stored = tuple(replace(m, seq=first + n) for n, m in enumerate(outcome.messages))
        status, exit_reason = self.status, self.exit_reason
        if outcome.ending is not None:
            status, exit_reason = outcome.ending.exit_reason.status, outcome.ending.exit_reason
        elif outcome.wait is not None:
            status = TurnStatus.WAITING
        elif outcome.hands_back:
            status = TurnStatus.QUEUED
        seen = (*self.messages, *stored, *news.taken)
        hidden = self.hidden_call_ids
        if outcome.compression is not None:
            hidden |= {c.id for m in seen if outcome.compression.hides(m) for c in m.calls}
            seen = outcome.compression.applied_to(seen)
        seen = shown(seen, outcome.counters.remedies)
        return replace(
            self,
            status=status,
            exit_reason=exit_reason,
            position=news.position,
            counters=outcome.counters,
            usage=self.usage + outcome.usage,
            spending=self.spending + outcome.spending,
            last_seq=news.last_seq,
            inbox_n=news.inbox_n,
            # Not the number in the news: where the answer was lost and read again later, that one may be newer.
            inbox_read=self.inbox_n if outcome.takes_inbox else self.inbox_read,
            is_interrupted=news.is_interrupted or self.is_interrupted,
            is_slice_over=news.is_slice_over,
            is_past_deadline=news.is_past_deadline,
            messages=seen,
            calls=self._calls_after(outcome),
            has_rested=False,
            compression=outcome.compression or self.compression,
            hidden_call_ids=hidden,
            weight=_weight_after(stored, outcome.model_call, self.weight),
        )

    def rested(self) -> Turn:
        """The turn after a backoff, which leaves nothing to store."""
        return replace(self, has_rested=True)

    def _calls_after(self, outcome: Outcome) -> tuple[CallState, ...]:
        if outcome.opened:
            return outcome.opened
        if any(m.role is Role.TOOL for m in outcome.messages):
            return ()
        closed = {c.call_id: c for c in outcome.closed}
        return tuple(
            replace(c, status=closed[c.call_id].status, result=closed[c.call_id].result)
            if c.call_id in closed
            else replace(c, status=CallStatus.STARTED, started_token=self.fencing_token)
            if c.call_id in outcome.started
            else c
            for c in self.calls
        )


def _weight_after(stored: tuple[Message, ...], call: ModelCall | None, before: Weight | None) -> Weight | None:
    """What the request of the newest answer weighed, which is among `stored` or was there before."""
    answer = next((m for m in reversed(stored) if m.role is Role.ASSISTANT), None)
    if answer is None or call is None:
        return before
    return Weight(answer.seq - 1, call.usage.input_total) if call.usage else None
