"""Stop means stop: in a tool, between tools, in a model call, in a pause, in the queue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from uuid import UUID

import pytest

from orchestration import history
from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import ModelRequest, Reply, StopSignal
from orchestration.runtime import Runtime
from persistence import resumption
from persistence.records.message import CallStatus
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from tests.store.outcomes import claim
from tests.support.ledger import gate
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench, wait_until

GATE = "of the interrupts"


@pytest.fixture(autouse=True)
def _gate() -> Generator[None]:
    gate(GATE).clear()
    yield
    gate(GATE).set()


def name(**more: str) -> str:
    return json.dumps({"name": GATE} | more)


def interrupted(bench: Bench, runtime: Runtime, turn_id: UUID, when: Callable[[], bool]) -> tuple[Turn, float]:
    """The turn, interrupted as soon as `when` holds, and the seconds that it took to end."""
    fetch = bench.start(turn_id, runtime)
    wait_until(when)
    asked_at = time.monotonic()
    bench.interrupt(turn_id, runtime)
    turn = fetch()
    return turn, time.monotonic() - asked_at


def test_every_call_is_answered_when_a_turn_is_interrupted_in_a_tool(bench: Bench) -> None:
    """AC-01."""
    bench.script(asks(("send", "{}"), ("hold", name()), ("send", "{}")))
    runtime, turn_id = bench.runtime(), bench.submit()

    turn, took_s = interrupted(bench, runtime, turn_id, lambda: "c2" in bench.ledger.starts(turn_id))

    assert turn.exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert took_s < 1.5
    assert bench.statuses(turn_id) == {"c1": "succeeded", "c2": "interrupted", "c3": "not_run"}
    assert bench.ledger.starts(turn_id) == ["c1", "c2"]
    assert bench.results(turn_id)["c3"].content == history.NOT_RUN_INTERRUPTED

    bench.script(says("Hello again."))
    following = bench.run(bench.submit("And now?", session_id=turn.session_id))
    assert following.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.calls == 1


def test_calls_that_are_deaf_to_the_interrupt_do_not_hold_the_turn_up(bench: Bench) -> None:
    """AC-28: three listen, three are deaf, two wait for a thread."""
    beside, deaf = ("hold_beside", name()), ("ignore", name())
    bench.script(asks(beside, beside, beside, deaf, deaf, deaf, beside, deaf))
    runtime, turn_id = bench.runtime(), bench.submit(tool_threads=6)

    turn, took_s = interrupted(bench, runtime, turn_id, lambda: len(bench.ledger.starts(turn_id)) == 6)

    assert turn.status is TurnStatus.INTERRUPTED
    assert took_s < 3
    statuses = bench.statuses(turn_id)
    assert [statuses[f"c{n}"] for n in (1, 2, 3)] == ["interrupted"] * 3
    assert [statuses[f"c{n}"] for n in (4, 5, 6)] == ["unknown"] * 3, "they may still have their effect"
    assert [statuses[f"c{n}"] for n in (7, 8)] == ["not_run"] * 2
    before = bench.everything(turn_id)

    gate(GATE).set()
    wait_until(lambda: sum(e.what == "end" for e in bench.ledger.entries(turn_id)) == 6)

    assert bench.everything(turn_id) == before, "late results do not enter the history"
    bench.script(says("Hello."))
    assert bench.run(bench.submit()).exit_reason is ExitReason.FINAL_ANSWER


def test_a_turn_interrupted_while_the_model_answers_ends_at_once_and_counts_the_call(bench: Bench) -> None:
    def streams(_request: ModelRequest, stop: StopSignal) -> Reply:
        assert stop.wait(20)
        raise CallInterrupted("stopped")

    bench.script(streams)
    runtime, turn_id = bench.runtime(), bench.submit()

    turn, took_s = interrupted(bench, runtime, turn_id, lambda: bench.model.calls == 1)

    view = bench.view(turn_id)
    assert (turn.exit_reason, view.output_text) == (ExitReason.INTERRUPTED_BY_USER, "")
    assert took_s < 1
    assert (bench.model.calls, view.spending.unknown_attempts) == (1, 1)
    assert [c["error"] for c in bench.everything(turn_id)["model_calls"]] == ["interrupted"]


def test_an_answer_that_was_whole_when_the_interrupt_came_is_kept_and_its_calls_are_not_run(bench: Bench) -> None:
    def answers(request: ModelRequest, _stop: StopSignal) -> Reply:
        bench.interrupt(request.messages[-1].turn_id)
        return asks(("send", "{}"), text="I will.")

    turn = bench.fresh(answers)

    assert turn.exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert bench.statuses(turn.id) == {"c1": "not_run"}
    assert bench.ledger.entries(turn.id) == []
    assert [m.text for m in bench.messages(turn.id)][1] == "I will."


def test_a_turn_interrupted_in_a_pause_between_attempts_ends_at_once(bench: Bench) -> None:
    bench.script(ModelError(ErrorClass.RATE_LIMIT, "429", retry_after_s=20))
    runtime, turn_id = bench.runtime(), bench.submit()

    turn, took_s = interrupted(bench, runtime, turn_id, lambda: "model.failed" in bench.events(turn_id))

    assert turn.exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert took_s < 1
    assert bench.model.calls == 1


def test_a_turn_interrupted_while_it_waits_for_its_next_attempt_ends_at_once(bench: Bench) -> None:
    turn = bench.fresh(ModelError(ErrorClass.RATE_LIMIT, "429", retry_after_s=200))
    assert turn.status is TurnStatus.WAITING

    bench.interrupt(turn.id)

    assert bench.view(turn.id).exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert bench.model.calls == 1


def test_a_turn_whose_owner_died_before_it_noticed_the_interrupt_ends_interrupted(bench: Bench) -> None:
    """AC-29 (c): no further model call."""
    bench.script(says("never asked for"))
    turn_id = bench.submit()
    claim(bench.database, turn_id)
    bench.interrupt(turn_id)
    bench.kill_owner(turn_id)

    turn = bench.run(turn_id)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.INTERRUPTED_BY_USER, 0)
    bench.script(says("Hello."))
    assert bench.run(bench.submit(session_id=turn.session_id)).exit_reason is ExitReason.FINAL_ANSWER


def test_an_interrupted_turn_can_be_resumed_and_knows_what_did_not_run(bench: Bench) -> None:
    def answers(request: ModelRequest, _stop: StopSignal) -> Reply:
        bench.interrupt(request.messages[-1].turn_id)
        return asks(("send", "{}"))

    turn = bench.fresh(answers)
    resumption.resume(bench.database, turn.id, notice=history.RESUMED_NOTICE)
    bench.script(answers, asks(("send", "{}"), tag="again"), says("Done."))

    resumed = bench.run(turn.id)

    assert resumed.exit_reason is ExitReason.FINAL_ANSWER
    told = [b for m in bench.model.requests[0].messages for b in m.content if getattr(b, "status", None)]
    assert [getattr(b, "status", None) for b in told] == [CallStatus.NOT_RUN]
    assert bench.ledger.starts(turn.id) == ["again1"]
