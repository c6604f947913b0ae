"""Slices, several processes under one, and maintenance on its own."""

from __future__ import annotations

import psutil

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.status import TurnStatus
from tests.faults.bench import Bench
from tests.support.processes import Process, eventually, perdure


def test_turns_move_between_workers_at_the_end_of_each_slice_and_complete(bench: Bench) -> None:
    bench.yard.workers(0)
    both = [bench.yard.start_worker(PERDURE_SLICE_S="0.3") for _ in range(2)]
    for worker in both:
        worker.wait_for_log("worker.ready")
    step = calls(("send", {}), ("look", {}), delay_s=0.1)
    for _ in range(4):
        bench.start(*[step] * 12, reply("done"))

    bench.everybody_completes()
    for turn in bench.turns:
        assert [r.step for r in turn.requests] == list(range(13)), "no answer was bought twice"
        assert turn.starts("send") == 12
        assert turn.view.crash_count == 0
        claims, handed_back = (turn.event_types().count(t) for t in ("turn.claimed", "turn.handed_back"))
        assert handed_back >= 3
        assert (claims, turn.view.fencing_token) == (handed_back + 1, 2 * handed_back + 1)
    owners = {e.payload["worker"] for t in bench.turns for e in t.events if e.type == "turn.claimed"}
    assert len(owners) == 2, "both workers carried them"
    bench.yard.workers(1)
    for worker in both:
        bench.yard.stop(worker)


def test_a_process_that_dies_under_its_supervisor_is_replaced_and_its_turn_goes_on(bench: Bench) -> None:
    bench.yard.workers(0)
    supervisor = bench.yard.start_worker("--processes", "2")
    _wait_for_children(supervisor, 2)
    turn = bench.start(calls(("send", {})), reply("done", gate=bench.gate("answer")))
    bench.at("answer").wait_for(1)
    victim = _carrying_child(bench, supervisor)

    victim.kill()
    turn.wait_for_requests(3)
    bench.at("answer").open()

    turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1, 1]
    assert turn.view.crash_count == 1
    _wait_for_children(supervisor, 2, ready=3)
    supervisor.terminate()
    assert supervisor.wait(within_s=30) == 0
    bench.yard.workers(1)


def test_the_processes_of_a_killed_supervisor_hand_their_turns_back_and_end(bench: Bench) -> None:
    bench.yard.workers(0)
    supervisor = bench.yard.start_worker("--processes", "2")
    _wait_for_children(supervisor, 2)
    turn = bench.start(calls(("send", {}), gate=bench.gate("first")), reply("done"))
    bench.at("first").wait_for(1)
    children = supervisor.children()
    bench.yard.workers(1)

    supervisor.kill()
    eventually(lambda: len(supervisor.logged("worker.draining")) == 2, "both of its processes are leaving")
    bench.at("first").open()

    turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 1]
    assert turn.view.crash_count == 0
    eventually(lambda: not any(_lives(child) for child in children), "its processes have ended", within_s=30)


def test_maintenance_on_its_own_serves_turns_that_no_worker_could(bench: Bench) -> None:
    bench.yard.workers(0)
    maintenance = bench.yard.start("maintain", *perdure("maintain"))
    maintenance.wait_for_log("leader.leads")
    stopped, lasting = bench.start(reply("never")), bench.start(reply("done"), queue="batch")

    bench.yard.keys.set(f"perdure:interrupt:{stopped.id}", "1")
    stopped.wait_until(TurnStatus.INTERRUPTED)
    (worker,) = bench.yard.workers(1)
    lasting.wait_for_completion()

    assert len(stopped.requests) == 0
    assert not worker.logged("leader.leads"), "the first leads as long as it lives"
    maintenance.terminate()
    assert maintenance.wait(within_s=20) == 0
    worker.wait_for_log("leader.leads", within_s=15)


def _wait_for_children(supervisor: Process, count: int, *, ready: int | None = None) -> None:
    """`ready` workers have been ready below it, ever, and `count` of them live."""
    eventually(
        lambda: len(supervisor.logged("worker.ready")) >= (ready or count), "its processes are ready", within_s=60
    )
    eventually(lambda: len(supervisor.children()) == count, f"it has {count} processes")


def _carrying_child(bench: Bench, supervisor: Process) -> psutil.Process:
    (turn,) = bench.turns
    assert turn.wait_for_carrier() is supervisor
    (found,) = [c for c in supervisor.children() if f"/{c.pid}/" in (turn.view.worker or "")]
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
