"""Stop means stop: in a model call, in tools, at rest, while nobody carries the turn, and while nobody could.

AC-01, AC-28, AC-29, AC-32.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ops.dev.scripted_provider.script import Stage, calls, reply, status
from orchestration.history import NOT_RUN_INTERRUPTED
from persistence.records.message import CallStatus
from persistence.records.status import ExitReason, TurnStatus
from tests.faults.bench import Bench, Started
from tests.faults.past import Past
from tests.support.processes import eventually, slowdown

# A second is promised; the rest is for what a measurement is off on a good day.
_WITHIN_S = 1.5


def _set_key(turn: Started) -> None:
    """What any program may do: set the flag, and nothing else."""
    turn.bench.yard.keys.set(f"perdure:interrupt:{turn.id}", "1")


def _ask_client(turn: Started) -> None:
    turn.bench.yard.client.interrupt(turn.id)


both_ways = pytest.mark.parametrize("interrupt", [_set_key, _ask_client])


def _ends_in_time(turn: Started, interrupt: Callable[[Started], None], what: str, within_s: float = _WITHIN_S) -> None:
    asked = time.monotonic()
    interrupt(turn)
    view = turn.wait_until(TurnStatus.INTERRUPTED)
    took = time.monotonic() - asked
    print(f"{what}: {took:.2f} s")
    assert took < within_s * slowdown(), what
    assert view.exit_reason is ExitReason.INTERRUPTED_BY_USER


@both_ways
def test_an_interrupt_ends_a_model_call_within_a_second(bench: Bench, interrupt: Callable[[Started], None]) -> None:
    bench.yard.workers(2)
    stages: tuple[Stage, ...] = ("before-byte", "headers", "mid-text", "after-last-delta")
    for stage in stages:
        words = reply("many words, " * 20, gate=bench.gate(stage, stage))
        bench.start(calls(("send", {})), words)
        bench.at(stage).wait_for(1)

    for turn, stage in zip(bench.turns, stages, strict=True):
        _ends_in_time(turn, interrupt, f"a model call, {stage}")
        eventually(lambda turn=turn: turn.requests[-1].disconnected_s is not None, "the open stream is closed")

    assert [[r.step for r in t.requests] for t in bench.turns] == [[0, 1]] * len(stages)
    assert [t.starts("send") for t in bench.turns] == [1] * len(stages)


@both_ways
def test_an_interrupt_ends_a_turn_whose_tools_obey_ignore_it_or_wait(
    bench: Bench, interrupt: Callable[[Started], None]
) -> None:
    bench.yard.workers(1)
    obey, block = ("obey", {"hold": bench.hold("never")}), ("block", {"hold": bench.fifo("c")})
    turn = bench.start(
        calls(obey, obey, obey, block, block, block, obey, obey), reply("never"), settings={"tool_threads": "6"}
    )
    turn.wait_for_start("obey", 3)
    turn.wait_for_start("block", 3)

    # The tools that ignore it are given a second's grace.
    _ends_in_time(turn, interrupt, "tools", within_s=1 + _WITHIN_S)
    left = turn.results
    assert [r.status for r in left] == (
        [CallStatus.INTERRUPTED] * 3 + [CallStatus.UNKNOWN] * 3 + [CallStatus.NOT_RUN] * 2
    )
    _stuck(bench, 3)
    bench.start(calls(("send", {})), reply("the slot is free")).wait_for_completion()
    bench.release_fifo("c")
    eventually(lambda: len(turn.ledger("block", "end")) == 3, "the tools that ignored it come back")
    _stuck(bench, 0)
    assert turn.results == left, "late results stay out of the history"
    assert len(turn.requests) == 1


def _stuck(bench: Bench, count: int) -> None:
    said = "SELECT sum(stuck)::int FROM workers"
    eventually(lambda: bench.yard.rows(said) == [(count,)], f"the worker says that {count} threads are stuck")


@both_ways
def test_every_call_is_answered_when_an_interrupt_meets_the_second_of_three(
    bench: Bench, interrupt: Callable[[Started], None]
) -> None:
    """AC-01."""
    bench.yard.workers(1)
    hold = {"hold": bench.hold("never")}
    turn = bench.start(
        calls(("send", {}), ("send", hold), ("send", {})), reply("never"), settings={"tool_threads": "1"}
    )
    turn.wait_for_start("send", 2)

    _ends_in_time(turn, interrupt, "the second of three calls")

    assert [r.id for r in turn.results] == [c.id for c in turn.calls]
    assert [r.status for r in turn.results] == [CallStatus.SUCCEEDED, CallStatus.INTERRUPTED, CallStatus.NOT_RUN]
    assert [r.content for r in turn.results][::2] == ["send done", NOT_RUN_INTERRUPTED]
    assert [x["call"] for x in turn.ledger("send", "start")] == [c.id for c in turn.calls[:2]]
    follower = bench.start(reply("unused"), reply("done"), session_id=turn.session_id)
    follower.wait_for_completion()
    assert len(follower.requests) == 1


@both_ways
def test_an_interrupt_ends_a_compression_and_the_pause_after_one_that_failed(
    bench: Bench, interrupt: Callable[[Started], None]
) -> None:
    bench.yard.workers(2)
    gate = bench.gate("summary", "mid-text")
    in_call = Past(bench, reply("A summary that takes its time.", gate=gate))
    calling = in_call.go_on(reply("never"))
    bench.at("summary").wait_for(1, timeout_s=20)
    in_pause = Past(bench, status(500, retry_after=25), name="pausing")
    pausing = in_pause.go_on(reply("never"))
    eventually(lambda: "compression.failed" in pausing.event_types(), "a summary has failed")

    _ends_in_time(calling, interrupt, "a compression")
    _ends_in_time(pausing, interrupt, "the pause before the next attempt at a summary")

    (summary,) = in_call.summaries
    eventually(lambda: summary.disconnected_s is not None, "the open stream is closed")
    assert len(in_pause.summaries) == 1
    for past, turn in ((in_call, calling), (in_pause, pausing)):
        assert (past.compressions_of(turn), turn.requests) == (0, [])


@both_ways
def test_an_interrupt_ends_a_rest_and_a_wait_between_attempts(
    bench: Bench, interrupt: Callable[[Started], None]
) -> None:
    bench.yard.workers(2)
    rests = bench.start(status(500), repeat_last=True, settings={"retry_base_s": "25", "retry_in_place_s": "60"})
    waits = bench.start(status(429, retry_after=3600), repeat_last=True)
    eventually(lambda: "model.failed" in rests.event_types(), "it rests in place")
    waits.wait_until(TurnStatus.WAITING)

    _ends_in_time(rests, interrupt, "a rest in place")
    _ends_in_time(waits, interrupt, "a wait without a worker", within_s=1 + _WITHIN_S)

    assert [len(rests.requests), len(waits.requests)] == [1, 1]


def test_an_interrupt_of_a_queued_turn_counts_though_no_worker_runs(bench: Bench) -> None:
    bench.yard.workers(0)
    first, second, third = (bench.start(reply("done")) for _ in range(3))

    for turn in (first, second, first):
        assert bench.yard.client.interrupt(turn.id) is TurnStatus.INTERRUPTED
    bench.yard.stop_redis()
    bench.yard.start_servers()
    bench.yard.workers(2)

    third.wait_for_completion()
    assert bench.yard.client.interrupt(third.id) is TurnStatus.COMPLETED
    assert third.view.status is TurnStatus.COMPLETED
    assert [len(t.requests) for t in (first, second, third)] == [0, 0, 1]
    assert [t.view.started_at for t in (first, second)] == [None, None]


def test_a_left_over_flag_touches_no_later_turn(bench: Bench) -> None:
    bench.yard.workers(2)
    past = reply("said by the turn before")
    done = bench.start(reply("done"))
    done.wait_for_completion()
    for interrupt in (_ask_client, _set_key, _ask_client):
        interrupt(done)
    after = bench.start(past, calls(("send", {})), reply("done"), session_id=done.session_id)
    after.wait_for_completion()

    twice = bench.start(calls(("send", {"hold": bench.hold("never")})), reply("done"))
    twice.wait_for_start("send")
    for interrupt in (_set_key, _ask_client, _set_key):
        interrupt(twice)
    twice.wait_until(TurnStatus.INTERRUPTED)
    follower = bench.start(past, calls(("send", {})), reply("done"), session_id=twice.session_id)

    follower.wait_for_completion()
    assert done.view.status is TurnStatus.COMPLETED
    assert (len(after.requests), len(follower.requests)) == (2, 2)


def test_an_interrupt_that_a_killed_worker_never_saw_ends_the_turn_at_its_recovery(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("put", {"hold": bench.hold("never")})), reply("never"))
    turn.wait_for_start("put")
    carrier = turn.wait_for_carrier()
    carrier.freeze()  # so that it cannot notice

    _set_key(turn)
    carrier.kill()

    view = turn.wait_for_end()
    assert view.exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert len(turn.requests) == 1, "no further model call"
    assert turn.starts("put") == 1
    assert turn.results[0].status is CallStatus.UNKNOWN
    past = reply("said by the turn before")
    bench.start(past, calls(("send", {})), reply("done"), session_id=turn.session_id).wait_for_completion()


def test_an_interrupt_reaches_a_suspect_that_is_carried_alone(bench: Bench) -> None:
    (victim,) = bench.yard.workers(1)
    turn = bench.start(calls(("put", {"hold": bench.hold("never")})), reply("never"))
    turn.wait_for_start("put")
    victim.kill()
    bench.yard.workers(1)
    turn.wait_for_start("put", 2)

    _ends_in_time(turn, _set_key, "a suspect")

    assert turn.results[0].status is CallStatus.INTERRUPTED
    assert len(turn.requests) == 1
