"""Time and CPU of contenders, in interleaved rounds, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.bench.contender import Contender
from ops.bench.stage import Stage


@dataclass(frozen=True, slots=True)
class Sample:
    """One contender in one round: seconds for all its iterations. `own_cpu_s` is of this process, all its threads."""

    iterations: int
    wall_s: float
    own_cpu_s: float
    postgres_cpu_s: float
    model_cpu_s: float

    @property
    def wall_ms(self) -> float:
        return 1000 * self.wall_s / self.iterations

    @property
    def own_cpu_ms(self) -> float:
        return 1000 * self.own_cpu_s / self.iterations

    @property
    def postgres_cpu_ms(self) -> float:
        return 1000 * self.postgres_cpu_s / self.iterations

    @property
    def model_cpu_ms(self) -> float:
        return 1000 * self.model_cpu_s / self.iterations


class Samples:
    """All samples of one contender at one number of turns, by round."""

    def __init__(self) -> None:
        self._all: list[Sample] = []

    def add(self, sample: Sample) -> None:
        self._all.append(sample)

    def median(self, of: Callable[[Sample], float]) -> float:
        return statistics.median(of(sample) for sample in self._all)

    def ratio(self, other: Samples, of: Callable[[Sample], float]) -> float:
        """The median of the rounds' ratios: both were measured side by side in each."""
        return statistics.median(of(a) / of(b) for a, b in zip(self._all, other._all, strict=True))


def rounds(
    stage: Stage, contenders: Sequence[Contender], *, turns: Sequence[int], iterations: int, count: int
) -> dict[tuple[str, int], Samples]:
    """Measure every contender at every number of turns in each of `count` rounds, after one that only warms up."""
    found: dict[tuple[str, int], Samples] = defaultdict(Samples)
    for number in range(-1, count):
        for width in turns:
            shift = number % len(contenders)
            for contender in (*contenders[shift:], *contenders[:shift]):
                sample = _sample(stage, contender, width, iterations)
                if number >= 0:
                    found[contender.name, width].add(sample)
    return found


def _sample(stage: Stage, contender: Contender, width: int, iterations: int) -> Sample:
    turns = contender.turns(width)
    gc.collect()
    postgres, model = stage.postgres_cpu_s(), stage.model.cpu_s()
    cpu, started = time.process_time(), time.perf_counter()
    in_threads(turns)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Sample(iterations * width, wall, cpu, stage.postgres_cpu_s() - postgres, stage.model.cpu_s() - model)


def in_threads(turns: Sequence[Callable[[], None]]) -> None:
    """Carry all turns at once. Raises what one of them raised."""
    errors: list[BaseException] = []

    def carry(turn: Callable[[], None]) -> None:
        try:
            turn()
        except BaseException as error:  # noqa: BLE001 (raised below, on the thread that asked)
            errors.append(error)

    threads = [threading.Thread(target=carry, args=(turn,)) for turn in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
