"""What a step leaves behind, to be stored by one statement, and what that statement learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from persistence.records.compression import Compression
from persistence.records.message import CallStatus, Effect, Message
from persistence.records.pending import Pending
from persistence.records.spending import Estimate, Spending
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.usage import Usage


@dataclass(frozen=True, slots=True)
class Counters:
    """The durable numbers that `decide` reads beside the history; written whole by every checkpoint.

    `attempts` counts failed attempts at the model in use since its last answer, `last_error` is the class of the newest
    one. `remedies` counts the rarer recoveries by name, so that each stays bounded over a crash. `pending` is the answer
    that is bought and has still to be fetched: whatever the next step is, it keeps it, or has it, or gives it up.
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
    pending: Pending | None = None

    def with_remedies(self, remedies: Mapping[str, int]) -> Counters:
        """These counters with other ones of remedies; what is 0 is not kept."""
        return replace(self, remedies=MappingProxyType({name: n for name, n in remedies.items() if n}))


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
    `key_label` is what the configuration calls the key that it was made with (`ports.Keys.label`), None where there is none.
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
    key_label: str | None = None
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
