"""SIGTERM: a worker hands its turns back and leaves with 0, and no crash is counted."""

from __future__ import annotations

import time

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.message import CallStatus
from tests.faults.bench import Bench
from tests.support.processes import eventually, slowdown


def test_a_worker_that_leaves_keeps_the_answer_in_flight_and_another_goes_on(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("send", {}), gate=bench.gate("first")), reply("done", gate=bench.gate("second")))
    bench.at("first").wait_for(1)
    leaving = turn.wait_for_carrier()

    leaving.terminate()
    leaving.wait_for_log("worker.draining")
    bench.at("first").open()
    answered_at = time.monotonic()
    bench.at("second").wait_for(1)
    print(f"from the end of the step to the next owner's call: {turn.requests[-1].monotonic - answered_at:.2f} s")
    bench.at("second").open()

    view = turn.wait_for_completion()
    assert leaving.wait(within_s=20) == 0
    assert [r.step for r in turn.requests] == [0, 1], "the answer in flight was not bought again"
    assert turn.requests[-1].monotonic - answered_at < 2 * slowdown()
    assert view.crash_count == 0
    assert turn.event_types().count("turn.handed_back") == 1
    assert turn.starts("send") == 1


def test_steps_that_outlast_the_drain_are_handed_back_as_they_are(bench: Bench) -> None:
    bench.yard.workers(0)
    leaving = bench.yard.start_worker(PERDURE_DRAIN_S="1")
    leaving.wait_for_log("worker.ready")
    fifo = bench.fifo("blocks")
    asking = bench.start(reply("done", gate=bench.gate("answer")))
    putting = bench.start(calls(("put", {"hold": bench.hold("tool")})), reply("done"))
    sending = bench.start(calls(("send", {"hold": bench.hold("tool")})), reply("done"))
    blocking = bench.start(calls(("block", {"hold": fifo})), reply("done"))
    bench.at("answer").wait_for(1)
    for turn, tool in ((putting, "put"), (sending, "send"), (blocking, "block")):
        turn.wait_for_start(tool)
    bench.yard.workers(1)

    leaving.terminate()
    assert leaving.wait(within_s=20) == 0
    asking.wait_for_requests(2)
    bench.release("tool")
    bench.at("answer").open()

    bench.everybody_completes()
    assert [turn.view.crash_count for turn in bench.turns] == [0, 0, 0, 0]
    assert (putting.starts("put"), sending.starts("send"), blocking.starts("block")) == (2, 1, 1)
    assert sending.results[0].status is CallStatus.UNKNOWN
    assert blocking.results[0].status is CallStatus.UNKNOWN
    assert asking.event_types().count("turn.handed_back") == 1


def test_a_worker_that_leaves_while_it_is_idle_is_gone_at_once_and_forgotten(bench: Bench) -> None:
    (idle, *_) = bench.yard.workers(2)

    idle.terminate()

    assert idle.wait(within_s=15) == 0
    assert len(idle.logged("worker.stopped")) == 1
    assert (idle.pid,) not in bench.yard.rows("SELECT pid FROM workers")
    bench.start(reply("done")).wait_for_completion()


def test_a_suspect_is_handed_back_by_the_worker_that_has_it_carried_alone(bench: Bench) -> None:
    (victim,) = bench.yard.workers(1)
    turn = bench.start(calls(("put", {"hold": bench.hold("tool")})), reply("done"))
    turn.wait_for_start("put")
    victim.kill()
    (second,) = bench.yard.workers(1)
    turn.wait_for_start("put", 2)
    assert eventually(second.children, "a child carries it")

    second.terminate()
    bench.release("tool")

    assert second.wait(within_s=30) == 0
    bench.yard.workers(1)
    turn.wait_for_completion()
    assert turn.view.crash_count == 0
