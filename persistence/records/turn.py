"""A turn, what a step leaves behind, and the one method that moves a turn on in memory: `Turn.after`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from uuid import UUID

from persistence.records.agent import AgentSettings
from persistence.records.compression import Compression, Weight, shown
from persistence.records.message import CallStatus, Message, Role
from persistence.records.outcome import CallState, Counters, ModelCall, News, Outcome
from persistence.records.spending import Spending
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage

# Among the counters of remedies: how often the turn was claimed and could not be loaded.
UNREADABLE = "unreadable"
# And what the agent's own model has refused in requests of the session: thinking up to this message, longer answers,
# longer summaries, ids of calls of another length. The next turn of the session and the agent begins with it.
THINKING_REFUSED_UP_TO = "thinking_refused_up_to"
OUTPUT_LIMIT, SUMMARY_OUTPUT_LIMIT, CALL_ID_CHARS = "output_limit", "summary_output_limit", "call_id_chars"
LEARNED = (THINKING_REFUSED_UP_TO, OUTPUT_LIMIT, SUMMARY_OUTPUT_LIMIT, CALL_ID_CHARS)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as its owner holds it: the row, the history that the model sees, and the calls that still need an answer.

    `compression` is the newest of the session; `hidden_call_ids` are those of the calls that it hides. `weight` is that
    of the newest answer's request, None where its provider did not count. `pending_age_s` is how old the pending answer
    was when the turn was loaded.
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
    max_crashes: int = 3
    compression: Compression | None = None
    hidden_call_ids: frozenset[str] = frozenset()
    weight: Weight | None = None
    spending: Spending = field(default_factory=Spending)
    deadline_in_s: float | None = None
    pending_age_s: float | None = None
    batch_id: UUID | None = None

    @property
    def is_ours_to_move(self) -> bool:
        return self.status is TurnStatus.RUNNING

    @property
    def is_lost_too_often(self) -> bool:
        """Whether so many of its workers were lost that it ends. It was not loaded then: only its outline is here."""
        return self.counters.crash_streak >= self.max_crashes

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
