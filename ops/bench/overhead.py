"""`python -m ops.bench.overhead`: what an iteration costs in Perdure, in the plain SDK loop, and in that loop made
durable by hand. One table of ratios; trust them, not the milliseconds."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench import late, measure, wal, work
from ops.bench.contender import Contender
from ops.bench.measure import Sample, Samples
from ops.bench.perdure_turns import Perdure
from ops.bench.plain_loop import Floor, HandWritten
from ops.bench.sdk_calls.all import PROTOCOLS
from ops.bench.sdk_calls.protocol import Protocol
from ops.bench.stage import Stage, stage
from ops.bench.tables import table

_FLOOR = "floor: create()"
_HAND = "hand: create() + INSERT"
_POST_HAND = "post hand: post() + INSERT"
_POST = "post()"
_POST_STREAM = "post(stream=True)"
_STREAM_HAND = "stream post hand: post(stream=True) + INSERT"
_KINDS = {"create()": "", "create(stream=True)": "stream ", _POST: "post ", _POST_STREAM: "stream post "}
# What the others are measured by, and how each is called in the heads of the table.
_MEASURES = {"floor": _FLOOR, "hand": _HAND, "post hand": _POST_HAND, "stream post hand": _STREAM_HAND}
_USUAL = next(iter(PROTOCOLS))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    turns: int
    iterations: int
    rounds: int
    reply_chars: int
    late: int = wal.LATE
    api: str = _USUAL

    @property
    def protocol(self) -> Protocol:
        return PROTOCOLS[self.api]


def main(arguments: Sequence[str] | None = None) -> None:
    scale = scale_of(arguments)
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder, stage() as running:
        _leave_the_last_core()
        show(running, scale, Path(folder))


def show(running: Stage, scale: Scale, folder: Path) -> None:
    """Measure, and print the tables."""
    _times(running, scale, folder)
    _late(running, scale, folder)
    _wal(running, scale, folder)


def scale_of(arguments: Sequence[str] | None) -> Scale:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.overhead", description=__doc__)
    parser.add_argument("--turns", type=int, default=16, help="how many at once, beside one alone")
    parser.add_argument("--iterations", type=int, default=50, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reply-chars", type=int, default=100, help="words beside each tool call")
    parser.add_argument("--late", type=int, default=wal.LATE, help="the late iteration that is looked at")
    parser.add_argument("--api", choices=PROTOCOLS, default=_USUAL, help="the protocol of the model server")
    return Scale(**vars(parser.parse_args(arguments)))


def _leave_the_last_core() -> None:
    """The model server has it. Postgres, which was started before, may use all."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[:-1])


def _times(running: Stage, scale: Scale, folder: Path) -> None:
    load = work.register(running.model, iterations=scale.iterations, reply_chars=scale.reply_chars)
    protocol = scale.protocol
    perdure = Perdure(running, load, folder, protocol.api)
    contenders: list[Contender] = []
    for method, ask in protocol.asks.items():
        kind = _KINDS[method]
        contenders.append(Floor(f"{kind}floor: {method}", running, load, protocol, ask))
        contenders.append(HandWritten(f"{kind}hand: {method} + INSERT", running, load, protocol, ask))
    contenders += [perdure, Perdure(running, load, folder, protocol.api, streams=False)]
    widths = sorted({1, scale.turns})
    print(f"{scale.api}: {load.sentence}; {scale.rounds} rounds, medians. CPU is that of the loop's process.")
    found = measure.rounds(running, contenders, turns=widths, iterations=scale.iterations, count=scale.rounds)
    for width in widths:
        print(_table(width, {c.name: found[c.name, width] for c in contenders}))
    carried = (scale.rounds + 1) * sum(widths) * scale.iterations
    print(f"Perdure: {perdure.fenced / carried:.2f} fenced statements an iteration (wanted: 2.00)")
    for contender in contenders:
        contender.close()


def _table(width: int, samples: dict[str, Samples]) -> str:
    heads = ["", "it/s", "ms", "CPU ms", "Postgres CPU ms", "model CPU ms"]
    heads += [f"{what} ÷ {other}" for what in ("time", "CPU") for other in _MEASURES]
    rows: list[list[str]] = []
    for name, own in samples.items():
        numbers = [own.median(lambda s: s.wall_ms), own.median(lambda s: s.own_cpu_ms)]
        numbers += [own.median(lambda s: s.postgres_cpu_ms), own.median(lambda s: s.model_cpu_ms)]
        for of in (_wall, _own_cpu):
            numbers += [own.ratio(samples[other], of) for other in _MEASURES.values()]
        rows.append([name, f"{1000 / numbers[0]:.0f}", *(f"{number:.2f}" for number in numbers)])
    return table(f"{width} turn{'s' if width > 1 else ''} at once, for each iteration", heads, rows)


def _wall(sample: Sample) -> float:
    return sample.wall_s


def _own_cpu(sample: Sample) -> float:
    return sample.own_cpu_s


def _late(running: Stage, scale: Scale, folder: Path) -> None:
    load = work.register(running.model, iterations=wal.iterations_for(scale.late), reply_chars=scale.reply_chars)
    protocol = scale.protocol
    contenders: list[Contender] = [
        Floor(_FLOOR, running, load, protocol, protocol.usual),
        HandWritten(_POST_HAND, running, load, protocol, protocol.asks[_POST]),
        HandWritten(_STREAM_HAND, running, load, protocol, protocol.asks[_POST_STREAM]),
        Perdure(running, load, folder, protocol.api),
    ]
    rows: list[list[str]] = []
    for contender in contenders:
        early, then = late.cost(contender, late=scale.late)
        times = (early.wall_ms, then.wall_ms, early.cpu_ms, then.cpu_ms)
        rows.append([contender.name, *(f"{ms:.2f}" for ms in times), f"{then.cpu_ms / early.cpu_ms:.2f}"])
        contender.close()
    heads = ["", "ms at 20", f"ms at {scale.late}", "CPU ms at 20", f"CPU ms at {scale.late}", "late ÷ early, CPU"]
    print(table(f"One turn alone, its 20th iteration and its {scale.late}th", heads, rows))


def _wal(running: Stage, scale: Scale, folder: Path) -> None:
    load = work.register(running.model, iterations=wal.iterations_for(scale.late), reply_chars=scale.reply_chars)
    protocol = scale.protocol
    contenders: list[Contender] = [
        HandWritten(_POST_HAND, running, load, protocol, protocol.asks[_POST]),
        Perdure(running, load, folder, protocol.api),
    ]
    rows: list[list[str]] = []
    by_hand: float | None = None
    for contender in contenders:
        early, late = wal.bytes_per_iteration(running, contender, late=scale.late)
        by_hand = by_hand or early
        rows.append([contender.name, f"{early:.0f}", f"{late:.0f}", f"{late / early:.2f}", f"{early / by_hand:.2f}"])
        contender.close()
    title = (
        "WAL bytes of an iteration, without full-page images (full_page_writes and autovacuum off for this part alone)"
    )
    heads = ["", f"at iteration {wal.EARLY}", f"at iteration {scale.late}", "late ÷ early", "÷ post hand"]
    print(table(title, heads, rows))


if __name__ == "__main__":
    main()
