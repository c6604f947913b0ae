"""Every benchmark runs at a tiny size and prints its table. What it measures is no test's business."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from ops.bench import import_time, in_flight, measure, overhead, promptness, recovery, wal, work
from ops.bench.perdure_turns import Perdure
from ops.bench.plain_loop import Floor, HandWritten
from ops.bench.sdk_calls.all import PROTOCOLS
from ops.bench.sdk_calls.chat import CHAT
from ops.bench.sdk_calls.protocol import Ask, Protocol
from ops.bench.stage import Stage, stage


@pytest.fixture(scope="module")
def running() -> Generator[Stage]:
    with stage() as made:
        yield made


def test_the_overhead_of_perdure_is_shown_beside_every_plain_loop(
    running: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overhead.show(running, overhead.Scale(turns=2, iterations=3, rounds=1, reply_chars=40, late=21), tmp_path)

    shown = capsys.readouterr().out
    assert "Perdure: 2.00 fenced statements an iteration" in shown
    for name in ("floor", "hand", "post floor", "post hand", "stream floor", "stream hand"):
        assert len(re.findall(rf"^{name}: ", shown, re.MULTILINE)) >= 2, f"{name} at one turn and at two"


def test_the_usual_scale_is_that_of_the_command_without_words() -> None:
    assert overhead.scale_of([]).protocol is CHAT


@pytest.mark.parametrize(
    ("protocol", "ask"),
    [pytest.param(p, ask, id=f"{p.api}-{name}") for p in PROTOCOLS.values() for name, ask in p.asks.items()],
)
def test_each_plain_loop_does_the_same_work_as_perdure(running: Stage, protocol: Protocol, ask: Ask) -> None:
    load = work.register(running.model, iterations=4, reply_chars=40)
    seen: list[str] = []
    contender = HandWritten("plain", running, load, protocol, ask)
    before = running.model.requests()

    measure.in_threads(contender.turns(2, observe=lambda: seen.append("tool")))

    contender.close()
    assert (running.model.requests() - before, len(seen)) == (8, 6)


def test_the_log_of_an_iteration_is_measured_early_and_late(running: Stage, tmp_path: Path) -> None:
    load = work.register(running.model, iterations=wal.iterations_for(30), reply_chars=40)
    perdure = Perdure(running, load, tmp_path)

    early, late = wal.bytes_per_iteration(running, perdure, late=30)

    perdure.close()
    assert min(early, late) > 1000, "an iteration keeps a result of 1000 characters"


def test_a_loop_that_fails_fails_the_benchmark(running: Stage) -> None:
    load = work.Work("scripted-unknown", 3, 40)
    floor = Floor("floor", running, load, CHAT, CHAT.usual)

    with pytest.raises(Exception, match="no script is called"):
        measure.in_threads(floor.turns(1))
    floor.close()


def test_turns_in_flight_are_carried_by_a_real_worker(running: Stage, tmp_path: Path) -> None:
    scale = in_flight.Scale(turns=3, processes=1, iterations=3)

    found = in_flight.fly(running, tmp_path, scale)

    assert found.wall_s >= 2.0, "two model calls of a second each are left when the gate opens"
    assert 0.9 < found.cycle_s < found.wall_s, "each answer takes a second, and a turn gets two after its first"
    assert found.idle_mb > 0
    assert "of the ideal" in in_flight.report(scale, found)


def test_a_killed_workers_turn_goes_on_with_the_next_worker(running: Stage, tmp_path: Path) -> None:
    yard = recovery.Yard(running, tmp_path)

    seconds = recovery.with_a_new_worker(yard, kills=1)

    yard.close()
    assert len(seconds) == 1
    assert seconds[0] > 0


def test_the_first_word_and_the_stop_are_timed() -> None:
    assert "401 messages" in promptness.first_words(1)
    assert "stop" in promptness.stops(1)


def test_the_celery_application_imports_no_sdk() -> None:
    assert import_time.once().sdks == []
