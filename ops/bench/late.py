"""What an iteration costs early and late in one long turn, in milliseconds: a request path that grows with its history
shows here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.contender import Contender
from ops.bench.wal import AROUND, EARLY


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one iteration; CPU is that of this process."""

    wall_ms: float
    cpu_ms: float


def cost(contender: Contender, *, late: int) -> tuple[Cost, Cost]:
    """Of an iteration around the 20th and around the one named `late`; the better of two turns. See `wal.iterations_for`."""
    contender.turns(1)[0]()  # connections stand, statements are prepared
    found = [_observed(contender, late) for _ in range(2)]
    return min((f[0] for f in found), key=_cpu), min((f[1] for f in found), key=_cpu)


def _cpu(found: Cost) -> float:
    return found.cpu_ms


def _observed(contender: Contender, late: int) -> tuple[Cost, Cost]:
    seen: list[tuple[float, float]] = []
    (turn,) = contender.turns(1, lambda: seen.append((time.perf_counter(), time.process_time())))
    turn()
    return _around(seen, EARLY), _around(seen, late)


def _around(seen: Sequence[tuple[float, float]], iteration: int) -> Cost:
    """`seen[n]` is the time at the tool call of iteration n + 1."""
    first, last = iteration - 1 - AROUND, iteration - 1 + AROUND
    wall, cpu = (
        1000 * (after - before) / (last - first) for before, after in zip(seen[first], seen[last], strict=True)
    )
    return Cost(wall, cpu)
