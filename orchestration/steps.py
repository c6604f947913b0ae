"""Every step that a turn can take, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from persistence.records.outcome import Ending
from persistence.records.status import WaitingFor


@dataclass(frozen=True, slots=True)
class Signals:
    """What the process that carries a turn knows beside the turn's row: a stop that was asked for, a need to leave."""

    is_interrupted: bool = False
    must_hand_back: bool = False
    awaits_drafts: bool = False


@dataclass(frozen=True, slots=True)
class CallModel:
    """Exactly one attempt at one model ("provider:model"); `is_last` says that no other one is left in the chain."""

    model: str
    is_grace: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Look for the answer that is pending, or sit a part of the pause between two looks out."""


@dataclass(frozen=True, slots=True)
class StartDrafts:
    """Mark the references of the agent as asked, before they are."""


@dataclass(frozen=True, slots=True)
class GatherDrafts:
    """Have the references answer that have not, and wait for the draft that comes next."""


@dataclass(frozen=True, slots=True)
class StartTools:
    """Mark these `once` calls as started, in one statement, before they run."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls, answer those in doubt as unknown, and mark the `once` calls of the group that comes next."""

    call_ids: tuple[str, ...]
    in_doubt: tuple[str, ...] = ()
    then_start: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FallBack:
    """Go on with another model of the agent's chain, for the rest of the turn; its attempts start at 0."""

    model_index: int


@dataclass(frozen=True, slots=True)
class Compress:
    """Exactly one attempt at a summary of these messages, which then stands in their place.

    `summary_tokens` is how long it should be at most, `room` what the model that writes it can be shown (both in
    tokens). `target_seq` is where the pass ends that this may be only a piece of.
    """

    model: str
    from_seq: int
    to_seq: int
    target_seq: int
    summary_tokens: int
    room: int


@dataclass(frozen=True, slots=True)
class ShowLess:
    """Show the model only so many characters of each result that it has not seen, for all of them are too much."""

    from_seq: int
    chars: int


class Repair(StrEnum):
    """What can be changed in a request that its model refused, so that it takes the next one."""

    OUTPUT_CAP = "output_cap"
    THINKING = "thinking"
    CALL_IDS = "call_ids"


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """From now on, ask for answers of at most `value` tokens, leave out the thinking of messages up to number `value`, or
    send ids of calls of `value` letters and digits."""

    repair: Repair
    value: int


@dataclass(frozen=True, slots=True)
class Backoff:
    """Rest in place, watching the interrupt."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """Wait without a worker."""

    waiting_for: WaitingFor
    resume_in_s: float


@dataclass(frozen=True, slots=True)
class AddContext:
    """Ask the sources of the agent's context, and let what they say join the request."""


@dataclass(frozen=True, slots=True)
class TakeInbox:
    """Let what arrived join the history."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """Queue the turn again, for any worker."""


@dataclass(frozen=True, slots=True)
class End:
    """End the turn; every open call is answered in the same statement."""

    ending: Ending


Step: TypeAlias = (
    CallModel
    | FetchAnswer
    | StartDrafts
    | GatherDrafts
    | StartTools
    | RunTools
    | FallBack
    | Compress
    | ShowLess
    | RepairRequest
    | Backoff
    | GiveUpWorker
    | AddContext
    | TakeInbox
    | HandBack
    | End
)
