"""What is compared: a way to carry turns, each on a thread of its own in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

# Called before each tool call, for whoever wants to know what an iteration has cost until then.
Observe: TypeAlias = Callable[[], None]


def nobody_observes() -> None:
    """Nothing is measured inside of a turn."""


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    def turns(self, count: int, observe: Observe = nobody_observes) -> list[Callable[[], None]]:
        """Make `count` turns ready. Each function carries one of them to its end, on whatever thread calls it."""
        ...

    def close(self) -> None: ...
