"""What Celery's own means tell of a turn: AsyncResult(turn_id), and the events that Flower shows (AC-10)."""

from __future__ import annotations

import json

import pytest
from celery.exceptions import TaskRevokedError
from celery.states import READY_STATES

from ops.dev.scripted_provider.script import calls, reply, status
from persistence.records.status import TurnStatus
from tests.faults.bench import CANARY, Bench
from tests.faults.monitor import monitoring
from tests.support.processes import eventually
from workers.results import TurnFailed

_ANSWER = "CANARY-ANSWER-90ae"


def test_a_result_tells_how_far_the_turn_is_and_how_it_ended(bench: Bench) -> None:
    bench.yard.workers(0)
    completed = bench.start(reply("the answer", gate=bench.gate("answer")))
    incomplete = bench.start(calls(("look", {})), reply("as far as I got"), settings={"iterations": "1"})
    failed = bench.start(status(401))
    interrupted = bench.start(reply("never", gate=bench.gate("never")))
    waiting = bench.start(status(429, retry_after=3600), repeat_last=True)
    assert [t.result.state for t in bench.turns] == ["PENDING"] * 5
    bench.yard.workers(1)
    bench.at("answer").wait_for(1)
    bench.at("never").wait_for(1)
    waiting.wait_until(TurnStatus.WAITING)
    for turn in (completed, interrupted, waiting):
        eventually(lambda turn=turn: turn.result.state == "STARTED", "it is started, and not finished")

    bench.at("answer").open()
    for turn in (interrupted, waiting):
        bench.yard.client.interrupt(turn.id)

    value = completed.result.get(timeout=10)
    assert value["output_text"] == "the answer"
    assert (value["turn_id"], value["session_id"]) == (str(completed.id), str(completed.session_id))
    assert (value["status"], value["exit_reason"]) == ("completed", "final_answer")
    assert value["usage"]["output_tokens"] > 0
    half = incomplete.result.get(timeout=10)
    assert (half["status"], half["exit_reason"]) == ("incomplete", "budget_exhausted")
    assert half["output_text"] == "as far as I got"
    with pytest.raises(TurnFailed, match="provider_failed"):
        failed.result.get(timeout=10)
    for turn in (interrupted, waiting):
        with pytest.raises(TaskRevokedError, match="interrupted_by_user"):
            turn.result.get(timeout=10)
        assert turn.result.state == "REVOKED"


def test_a_resumed_turn_is_not_finished_until_it_ends_again(bench: Bench) -> None:
    bench.yard.workers(1)
    turn = bench.start(
        calls(("look", {})), reply("half"), reply("whole", gate=bench.gate("whole")), settings={"iterations": "1"}
    )
    assert turn.result.get(timeout=20)["status"] == "incomplete"

    bench.yard.client.resume(turn.id, iterations=5)
    bench.at("whole").wait_for(1)
    eventually(lambda: turn.result.state == "STARTED", "the old result is forgotten")
    bench.at("whole").open()

    turn.wait_for_completion()
    eventually(lambda: turn.result.state == "SUCCESS", "the new result is stored")
    assert turn.result.get(timeout=5)["output_text"] == "whole"


def test_the_last_event_of_a_turn_is_its_end_and_none_before_reads_as_one(bench: Bench) -> None:
    bench.yard.workers(0)
    slicing = [bench.yard.start_worker(PERDURE_SLICE_S="0.2") for _ in range(2)]
    for worker in slicing:
        worker.wait_for_log("worker.ready")
    with monitoring(bench.yard) as monitor:
        handed = bench.start(*[calls(("look", {"hold": ""}), delay_s=0.1)] * 6, reply(_ANSWER))
        waited = bench.start(
            calls(("look", {})), reply("done"), faults=[status(429, retry_after=1)], settings={"retry_in_place_s": "0"}
        )
        incomplete = bench.start(calls(("look", {})), reply("half"), settings={"iterations": "1"})
        failed = bench.start(status(401, message=CANARY))
        held = bench.start(calls(("send", {"hold": bench.hold("never")})), reply("never"))
        queued = bench.start(reply("never"), session_id=held.session_id)
        submitted = bench.yard.app.send_task(
            "perdure.submit",
            kwargs={"input": CANARY, "settings": {"model": f"main:{bench.script('door', [reply(_ANSWER)])}"}},
            queue="perdure.interactive",
        )
        door = bench.adopt_by_id(submitted.get(timeout=20), "door")
        held.wait_for_start("send")
        for turn in (queued, held):
            bench.yard.client.interrupt(turn.id)
        bench.everybody_ends()
        finals = {
            handed: "SUCCESS",
            waited: "SUCCESS",
            incomplete: "SUCCESS",
            door: "SUCCESS",
            failed: "FAILURE",
            held: "REVOKED",
            queued: "REVOKED",
        }
        for turn, final in finals.items():
            eventually(lambda turn=turn, final=final: monitor.states(turn.id)[-1:] == [final], f"{turn} is {final}")

    assert "turn.handed_back" in handed.event_types()
    assert "turn.waiting" in waited.event_types()
    for turn, final in finals.items():
        shown = monitor.states(turn.id)
        assert shown[-1] == final, shown
        assert not [s for s in shown[:-1] if s in READY_STATES], shown
        assert len(monitor.finals(turn.id)) == 1, monitor.types(turn.id)
    assert monitor.finals(submitted.id) == ["SUCCESS"]
    told = json.dumps(monitor.events)
    for secret in (CANARY, _ANSWER, "hold", *bench.yard.secrets):
        assert secret not in told
    received = [e for e in monitor.events if e["type"] == "task-received"]
    assert {(e["args"], e["kwargs"]) for e in received} == {("()", "{}")}
    bench.yard.workers(1)
    for worker in slicing:
        bench.yard.stop(worker)


def test_sixteen_duplicate_wakes_carry_a_turn_once(bench: Bench) -> None:
    bench.yard.workers(2)
    turn = bench.start(*[calls(("send", {}), delay_s=0.1)] * 4, reply("done", gate=bench.gate("last")))
    with monitoring(bench.yard) as monitor:

        def wake(times: int) -> None:
            seen = monitor.types(turn.id).count("task-started")
            for _ in range(times):
                bench.yard.app.send_task(
                    "perdure.run_turn", args=[str(turn.id)], task_id=str(turn.id), queue="perdure.interactive"
                )
            eventually(lambda: monitor.types(turn.id).count("task-started") >= seen + times, "the duplicates are taken")

        wake(16)
        bench.at("last").wait_for(1)
        assert turn.result.state == "STARTED"
        bench.at("last").open()
        turn.wait_for_completion()
        wake(16)
        eventually(lambda: monitor.states(turn.id)[-1] == "SUCCESS", "it still reads as ended")

    assert turn.event_types().count("turn.claimed") == 1
    assert [r.step for r in turn.requests] == [0, 1, 2, 3, 4]
    assert turn.starts("send") == 4
    assert turn.view.fencing_token == 1
