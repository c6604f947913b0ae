"""Words that join a turn while it lives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestration.ports import ModelRequest, Reply, StopSignal
from persistence import inbox, resumption
from persistence.errors import Refused
from persistence.records.message import Origin
from persistence.records.status import ExitReason
from persistence.records.usage import Usage
from tests.support.scripted_model import Scripted, asks, says
from tests.support.workbench import Bench


def steering(bench: Bench, reply: Reply, words: str = "in metric units") -> Scripted:
    """A reply during which the user says something."""

    def answered(request: ModelRequest, _stop: StopSignal) -> Reply:
        inbox.steer(bench.database, request.messages[-1].turn_id, words)
        return reply

    return answered


def test_words_that_come_during_a_call_join_after_its_results(bench: Bench) -> None:
    turn = bench.fresh(steering(bench, asks(("look", "{}"), ("send", "{}"))), says("Done."))

    origins = [m.origin for m in bench.messages(turn.id)]
    assert origins == [Origin.USER, Origin.MODEL, Origin.TOOL, Origin.STEER, Origin.MODEL]
    assert bench.model.requests[-1].messages[-1].text == "in metric units"
    assert bench.events(turn.id).count("steer.applied") == 1


def test_words_that_come_during_the_last_answer_prolong_the_turn(bench: Bench) -> None:
    turn = bench.fresh(steering(bench, says("In feet: 3.")), says("In metres: 1."))

    assert [m.text for m in bench.messages(turn.id)] == ["Do it.", "In feet: 3.", "in metric units", "In metres: 1."]
    assert bench.view(turn.id).output_text == "In metres: 1."
    assert bench.view(turn.id).iterations_used == 2


def test_words_that_wait_when_the_turn_starts_are_heard_before_the_first_call(bench: Bench) -> None:
    bench.script(says("Done."))
    turn_id = bench.submit()
    inbox.steer(bench.database, turn_id, "in metric units")

    bench.run(turn_id)

    assert [m.text for m in bench.model.requests[0].messages] == ["Do it.", "in metric units"]


@pytest.mark.parametrize(
    ("settings", "exit_reason"),
    [({"iterations": 1}, ExitReason.FINAL_ANSWER), ({"max_tokens_total": 14_000}, ExitReason.FINAL_ANSWER)],
    ids=["iterations", "tokens"],
)
def test_words_for_which_no_budget_is_left_do_not_cost_the_answer(
    bench: Bench, settings: dict[str, Any], exit_reason: ExitReason
) -> None:
    turn = bench.fresh(steering(bench, replace(says("Done."), usage=Usage(14_000))), **settings)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (exit_reason, "Done.")
    assert bench.events(turn.id)[-2:] == ["steer.not_delivered", "turn.ended"]
    assert bench.model.calls == 1


def test_words_that_come_with_an_interrupt_do_not_cost_the_answer(bench: Bench) -> None:
    runtime = bench.runtime()

    def answered(request: ModelRequest, _stop: StopSignal) -> Reply:
        turn_id = request.messages[-1].turn_id
        inbox.steer(bench.database, turn_id, "and another thing")
        bench.interrupt(turn_id, runtime)
        return says("Done.")

    bench.script(answered)
    turn = bench.run(bench.submit(), runtime)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Done.")


def test_words_during_the_grace_call_are_refused_by_name(bench: Bench) -> None:
    grace = steering(bench, says("partial summary"))
    turn = bench.fresh(asks(("look", "{}")), grace, iterations=1)

    assert bench.view(turn.id).output_text == "partial summary"
    assert bench.events(turn.id)[-3:] == ["steer.not_delivered", "model.answered", "turn.ended"]
    with pytest.raises(Refused):
        inbox.steer(bench.database, turn.id, "too late")


def test_words_that_an_ending_refused_do_not_come_back_with_a_resume(bench: Bench) -> None:
    turn = bench.fresh(asks(("look", "{}")), steering(bench, says("partial summary")), iterations=1)
    resumption.resume(bench.database, turn.id, notice="Go on.", iterations=1)
    bench.script(asks(("look", "{}")), says("partial summary"), says("Done."))

    bench.run(turn.id)

    assert Origin.STEER not in [m.origin for m in bench.messages(turn.id)]
    assert bench.view(turn.id).output_text == "Done."


def test_words_sent_all_the_time_are_each_heard_once(bench: Bench) -> None:
    replies = [steering(bench, asks(("look", "{}"), tag=f"i{n}-"), f"words {n}") for n in range(6)]
    turn = bench.fresh(*replies, says("Done."))

    heard = [m.text for m in bench.messages(turn.id) if m.origin is Origin.STEER]
    assert heard == [f"words {n}" for n in range(6)]
