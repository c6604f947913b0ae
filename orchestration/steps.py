"""Every step that a turn can take, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from persistence.records.turn import Ending, WaitingFor


@dataclass(frozen=True, slots=True)
class Signals:
    """What the process that carries a turn knows beside the turn's row: a stop that was asked for, a need to leave."""

    is_interrupted: bool = False
    must_hand_back: bool = False


@dataclass(frozen=True, slots=True)
class CallModel:
    """Exactly one attempt at one model ("provider:model")."""

    model: str
    is_grace: bool = False


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
class Backoff:
    """Rest in place, watching the interrupt."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """Wait without a worker."""

    waiting_for: WaitingFor
    resume_in_s: float


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


Step: TypeAlias = CallModel | StartTools | RunTools | FallBack | Backoff | GiveUpWorker | TakeInbox | HandBack | End
