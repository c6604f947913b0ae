"""What watchers of a turn may hear while it goes on. It may be lost, no turn ever reads it, and nobody waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from orchestration.ports import Delta


class Activity(StrEnum):
    """What a turn does just now that its history does not say."""

    STREAMING = "streaming"
    COMPRESSING = "compressing"
    BACKING_OFF = "backing_off"


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose words these are: one attempt at a model, known by the turn's fence.

    What has a higher (fencing_token, position) is newer, and takes the place of all older words of its iteration.
    """

    turn_id: UUID
    fencing_token: int
    position: int
    iteration: int
    attempt: int
    model: str


class Words(Protocol):
    """Takes the words of one attempt as they come. Neither blocks nor raises."""

    def __call__(self, delta: Delta) -> None: ...

    def end(self) -> None:
        """No more of them will come, whatever became of the attempt."""
        ...


class Live(Protocol):
    """Where live text goes. Nothing here blocks or raises."""

    def words(self, mark: Mark) -> Words: ...

    def progress(self, turn_id: UUID, call_id: str, tool: str, text: str) -> None:
        """What a running tool says of itself."""
        ...

    def state(self, turn_id: UUID, activity: Activity) -> None: ...


class Unheard:
    """The words of one attempt, for nobody."""

    def __call__(self, delta: Delta) -> None: ...

    def end(self) -> None: ...


UNHEARD = Unheard()


class Nobody:
    """Live text has no reader in this process."""

    def words(self, mark: Mark) -> Words:  # noqa: ARG002 (as the protocol names it)
        return UNHEARD

    def progress(self, turn_id: UUID, call_id: str, tool: str, text: str) -> None: ...

    def state(self, turn_id: UUID, activity: Activity) -> None: ...
