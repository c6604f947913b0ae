"""SIGSTOP of a worker past its lease, then SIGCONT: what it still had in hand is refused, and it buys nothing more.

AC-11.
"""

from __future__ import annotations

import time

from ops.dev.scripted_provider.script import calls, reply
from persistence.records.message import CallStatus
from tests.faults.bench import Bench
from tests.support.processes import Process, eventually


def test_the_late_answer_of_a_frozen_worker_is_refused_and_it_buys_no_other(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(calls(("put", {}), gate=bench.gate("first")), reply("done", gate=bench.gate("second")))
    bench.at("first").wait_for(1)
    frozen, old_token = turn.wait_for_carrier(), turn.view.fencing_token

    frozen.freeze()
    turn.wait_for_requests(2)
    bench.at("first").let(1)  # the answer to the frozen worker's request, which came first
    eventually(lambda: turn.requests[0].finished_s is not None, "that answer is on its way")
    frozen.thaw()
    frozen.wait_for_log("turn.lease_lost", turn_id=str(turn.id))
    bench.at("first").open()
    bench.at("second").wait_for(1)
    bench.at("second").open()

    view = turn.wait_for_completion()
    assert [r.step for r in turn.requests] == [0, 0, 1], "only the new owner went on"
    assert turn.starts("put") == 1
    assert view.crash_count == 1
    query = "SELECT error FROM model_calls WHERE turn_id = %s AND fencing_token = %s"
    late = bench.yard.rows(query, turn.id, old_token)
    assert late == [("outcome_unknown",)], "nothing was written under the old token but what the take back booked"
    assert frozen.is_alive


def test_the_late_result_of_a_frozen_workers_tool_does_not_enter_the_history(bench: Bench) -> None:
    bench.yard.workers(2)
    hold = {"hold": bench.hold("tool")}
    turn = bench.start(calls(("put", hold)), reply("done", gate=bench.gate("answer")))
    once = bench.start(calls(("send", hold)), reply("done", gate=bench.gate("answer")))
    turn.wait_for_start("put")
    once.wait_for_start("send")
    frozen = {p.pid: p for p in (turn.wait_for_carrier(), once.wait_for_carrier())}

    for process in frozen.values():
        process.freeze()
    bench.yard.standing = [w for w in bench.yard.standing if w.pid not in frozen]
    bench.yard.workers(1)
    once.wait_for_requests(2)  # its call was answered: the outcome is unknown
    turn.wait_for_start("put", 2)
    bench.release("tool")
    bench.at("answer").wait_for(2)
    for process in frozen.values():
        process.thaw()
        process.wait_for_log("turn.lease_lost")
    bench.at("answer").open()

    bench.everybody_completes()
    assert [r.status for r in turn.results] == [CallStatus.SUCCEEDED]
    assert [r.status for r in once.results] == [CallStatus.UNKNOWN]
    assert (turn.starts("put"), once.starts("send")) == (2, 1)
    assert (len(turn.requests), len(once.requests)) == (2, 2)
    bench.yard.standing += list(frozen.values())


def test_a_frozen_leader_loses_the_lead_and_maintenance_goes_on_elsewhere(bench: Bench) -> None:
    bench.yard.workers(2)
    leader = _leader(bench)
    (other,) = [w for w in bench.yard.standing if w is not leader]
    led_before = len(other.logged("leader.leads"))

    frozen_at = time.monotonic()
    leader.freeze()
    eventually(lambda: len(other.logged("leader.leads")) > led_before, "the other one leads", within_s=15)
    print(f"from the freeze of the leader to the next one: {time.monotonic() - frozen_at:.1f} s")
    # A batch turn is woken by the leader alone.
    during = bench.start(reply("done"), queue="batch")
    during.wait_for_completion(within_s=15)
    leader.thaw()
    leader.wait_for_log("service.failing", service="maintenance")
    after = bench.start(reply("done"), queue="batch")

    after.wait_for_completion(within_s=15)
    assert _leader(bench) is other
    assert leader.is_alive


def _leader(bench: Bench) -> Process:
    """The worker whose connection holds the advisory lock: its port tells which process has the other end."""
    query = """SELECT a.client_port FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()"""

    def look() -> Process | None:
        ports = {port for (port,) in bench.yard.rows(query)}
        return next((w for w in bench.yard.standing if ports & w.ports()), None)

    return eventually(look, "somebody leads")
