"""SIGKILL of a worker, wherever it is: the turn goes on from its last checkpoint, on another worker or on a new one.

AC-12.
"""

from __future__ import annotations

import random
import time

import pytest

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.message import CallStatus
from tests.faults.bench import Bench
from tests.support.processes import eventually, slowdown

# Room for what a measurement is off on a good day.
_SLACK = 1.5


def test_a_worker_killed_in_a_model_call_costs_that_call_and_nothing_else(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("send", {})), reply("done", gate=bench.gate("answer")))
    bench.at("answer").wait_for(1)
    victim = turn.wait_for_carrier()

    victim.kill()
    turn.wait_for_requests(3)
    bench.at("answer").open()

    view = turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1, 1]
    assert turn.requests[1].messages == turn.requests[2].messages
    assert turn.starts("send") == 1
    assert (view.crash_count, view.spending.unknown_attempts) == (1, 1)


def test_a_worker_killed_in_tools_repeats_only_what_may_be_repeated(bench: Bench) -> None:
    (victim,) = bench.yard.workers(1)
    hold = {"hold": bench.hold("tools")}
    done = reply("done")
    once = bench.start(calls(("send", hold)), done)
    repeatable = bench.start(calls(("put", hold)), done)
    reads = bench.start(calls(("look", hold), ("look", hold)), done)
    several = bench.start(calls(("send", {}), ("send", hold), ("put", {})), done)
    for turn, tool, count in ((once, "send", 1), (repeatable, "put", 1), (reads, "look", 2), (several, "send", 2)):
        turn.wait_for_start(tool, count)
    bench.yard.workers(2)

    victim.kill()
    bench.release("tools")

    bench.everybody_completes()
    assert once.starts("send") == 1
    assert once.results[0].status is CallStatus.UNKNOWN
    assert "Outcome unknown" in str(once.requests[-1].messages[-1])
    assert [x["key"] for x in repeatable.ledger("put", "start")] == [f"{repeatable.id}:{repeatable.calls[0].id}"] * 2
    assert reads.starts("look") == 4
    assert [r.status for r in several.results] == [CallStatus.SUCCEEDED, CallStatus.UNKNOWN, CallStatus.SUCCEEDED]
    assert [turn.view.crash_count for turn in bench.turns] == [0, 0, 0, 0], "a neighbour in mid-tool convicts nobody"
    assert all(len(turn.requests) == 2 for turn in bench.turns), "no answer was bought twice"


def test_the_child_that_carries_a_suspect_hands_it_back_when_its_worker_is_killed(bench: Bench) -> None:
    (first,) = bench.yard.workers(1)
    turn = bench.start(calls(("put", {"hold": bench.hold("tool")})), reply("done"))
    turn.wait_for_start("put")
    first.kill()
    (second,) = bench.yard.workers(1)
    turn.wait_for_start("put", 2)
    (child,) = second.children()

    second.kill()
    eventually(lambda: second.logged("worker.draining"), "the child knows that its worker is gone")
    bench.yard.workers(1)
    bench.release("tool")

    turn.wait_for_completion()
    assert turn.starts("put") == 2, "the step under way was brought to its end"
    assert turn.view.crash_count == 0
    eventually(lambda: not child.is_running(), "the child has ended")


def test_a_process_that_stalls_past_its_lease_is_fenced_and_its_turns_go_on_elsewhere(bench: Bench) -> None:
    """A C function that keeps Python's lock stops every thread of its process, the one that renews leases too."""
    (stalled,) = bench.yard.workers(1)
    stalling = bench.start(calls(("stall", {"begin": bench.hold("begin"), "hold": bench.hold("stall")})), reply("done"))
    neighbour = bench.start(calls(("send", {}), gate=bench.gate("answer")), reply("done"))
    bench.at("answer").wait_for(1)
    stalling.wait_for_start("stall")
    bench.yard.workers(2)

    bench.release("begin")
    neighbour.wait_for_requests(2, within_s=40)
    bench.release("stall")
    bench.at("answer").open()

    bench.everybody_completes()
    assert stalling.starts("stall") >= 2
    assert [r.step for r in stalling.requests] == [0, 1]
    assert [r.step for r in neighbour.requests] == [0, 0, 1]
    assert neighbour.starts("send") == 1
    for turn in bench.turns:
        stalled.wait_for_log("turn.lease_lost", turn_id=str(turn.id))


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_any_instant_lose_nothing(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    workers = bench.yard.workers(2)
    step = calls(("send", {}), ("look", {}), ("put", {}), delay_s=0.05)
    for _ in range(6):
        bench.start(*[step] * 12, reply("done"), settings={"max_crashes": "20"})

    for _ in range(3):
        time.sleep(chance.uniform(0.1, 1.2))  # the fault: an instant that nobody has chosen
        chance.choice(workers).kill()
        workers = bench.yard.workers(2)

    bench.everybody_completes()
    for turn in bench.turns:
        assert len(turn.results) == 36
        assert all(r.status in (CallStatus.SUCCEEDED, CallStatus.UNKNOWN) for r in turn.results)


def test_with_another_worker_idle_the_next_model_call_comes_soon_after_the_lease(bench: Bench) -> None:
    bench.yard.workers(0)
    bench.yard.wait_out_the_start_of_postgres(lease_s=10)
    both = [bench.yard.start_worker(PERDURE_LEASE_S="10") for _ in range(2)]
    for worker in both:
        worker.wait_for_log("worker.ready")
    turn = bench.start(reply("done", gate=bench.gate("answer")))
    bench.at("answer").wait_for(1)

    killed_at = time.monotonic()
    turn.wait_for_carrier().kill()
    again = turn.wait_for_requests(2, within_s=60)[1]
    bench.at("answer").open()

    took = again.monotonic - killed_at
    print(f"from the kill to the next model call, another worker idle: {took:.1f} s")
    assert took < 13 * _SLACK * slowdown()
    turn.wait_for_completion()
    for worker in both:
        if worker.is_alive:
            bench.yard.stop(worker)


def test_a_new_worker_of_the_host_takes_over_at_once(bench: Bench) -> None:
    bench.yard.workers(0)
    worker = bench.yard.start_worker(PERDURE_LEASE_S="10")
    worker.wait_for_log("worker.ready")
    took: list[float] = []
    while len(took) < 3 and not (took and min(took) < 3):  # the best of three: whatever else happens only adds
        turn = bench.start(reply("done", gate=bench.gate(f"answer{len(took)}")))
        bench.at(f"answer{len(took)}").wait_for(1)
        worker.kill()
        worker = bench.yard.start_worker(PERDURE_LEASE_S="10")
        again = turn.wait_for_requests(2, within_s=30)[1]
        bench.at(f"answer{len(took)}").open()
        turn.wait_for_completion()
        assert turn.view.crash_count == 1
        took.append(again.monotonic - worker.started)

    print(f"from the start of a new worker to the next model call: {min(took):.1f} s (of {took})")
    assert min(took) < 3 * _SLACK * slowdown()
    eventually(lambda: worker.logged("worker.ready"), "it takes other work, too")
    bench.yard.stop(worker)
