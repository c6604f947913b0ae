"""What threads of one turn hand to the thread that carries it, in the order in which it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The results of `works`, each done in a thread of its own. Only the thread that made it may ask for them."""

    def __init__(self, works: Sequence[Callable[[], T]]) -> None:
        self._arrived: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self.left = len(works)
        for work in works:
            threading.Thread(target=self._do, args=(work,), daemon=True).start()

    def next(self, within_s: float | None = None) -> T:
        """The result that comes next; raises what its work raised.

        Raises TimeoutError if none comes within so many seconds: the work goes on in its thread.
        """
        try:
            result, error = self._arrived.get(timeout=within_s)
        except Empty:
            raise TimeoutError(f"nothing came within {within_s} s") from None
        self.left -= 1
        if error is not None:
            raise error
        assert result is not None
        return result

    def _do(self, work: Callable[[], T]) -> None:
        try:
            self._arrived.put((work(), None))
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            self._arrived.put((None, error))
