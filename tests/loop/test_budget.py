"""Iterations, the grace call, and what a resume gives back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orchestration import history
from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Finish, ModelRequest, Reply, StopSignal
from persistence import resumption
from persistence.records.agent import Grace
from persistence.records.message import Origin
from persistence.records.status import ExitReason, TurnStatus
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench


def calls(count: int) -> list[Reply]:
    return [asks(("note", f'{{"text":"{n}"}}'), tag=f"i{n}-") for n in range(1, count + 1)]


def test_a_turn_that_lost_its_workers_may_lose_as_many_again_after_a_resume(bench: Bench) -> None:
    def poison(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise KeyboardInterrupt

    def lost(turn_id: UUID) -> None:
        bench.script(poison)
        with pytest.raises(KeyboardInterrupt):
            bench.run(turn_id)
        bench.kill_owner(turn_id)

    turn_id = bench.submit(max_crashes=1)
    lost(turn_id)
    assert bench.run(turn_id).exit_reason is ExitReason.WORKER_LOST

    resume(bench, turn_id)
    assert bench.view(turn_id).crash_count == 0
    bench.script(says("Done."))
    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER


def test_a_turn_that_passed_its_deadline_has_as_long_again_after_a_resume(bench: Bench) -> None:
    bench.script(says("Done."))
    turn_id = bench.submit(deadline_s=3600)
    bench.database.rows("UPDATE turns SET deadline = now() WHERE id = %(id)s", {"id": turn_id})
    assert bench.run(turn_id).exit_reason is ExitReason.DEADLINE

    resume(bench, turn_id)

    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER


def resume(bench: Bench, turn_id: UUID, **raised: Any) -> None:
    resumption.resume(bench.database, turn_id, notice=history.RESUMED_NOTICE, **raised)


def test_a_spent_budget_gets_one_grace_call_without_tools_and_its_text_is_the_output(bench: Bench) -> None:
    """AC-26, its base."""
    turn = bench.fresh(*calls(3), says("partial summary"), iterations=3)

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.BUDGET_EXHAUSTED)
    assert (view.output_text, view.iterations_used, view.grace_used) == ("partial summary", 3, True)
    assert [r.may_call_tools for r in bench.model.requests] == [True, True, True, False]
    assert all(r.tools for r in bench.model.requests), "dropping them would break the cached prefix"
    assert len(bench.ledger.starts(turn.id)) == 3
    assert [m.origin for m in bench.model.requests[-1].messages][-2:] == [Origin.TOOL, Origin.NOTICE]
    assert bench.events(turn.id).count("budget.grace") == 1


def test_a_grace_call_that_fails_once_is_tried_again(bench: Bench) -> None:
    """AC-26, the variant with an error."""
    fault = ModelError(ErrorClass.SERVER_ERROR, "500", status=500)
    bench.script(*calls(1), says("partial summary"), faults=[None, fault])

    turn = bench.run(bench.submit(iterations=1))

    assert bench.view(turn.id).output_text == "partial summary"
    assert [r.may_call_tools for r in bench.model.requests] == [True, False, False]


@pytest.mark.parametrize("grace_reply", [says(""), ModelError(ErrorClass.AUTH, "401")], ids=["empty", "refused"])
def test_a_grace_call_without_an_answer_leaves_an_honest_sentence(
    bench: Bench, grace_reply: Reply | ModelError
) -> None:
    """AC-26, the variant with an empty reply."""
    turn = bench.fresh(*calls(2), grace_reply, iterations=2)

    view = bench.view(turn.id)
    assert view.exit_reason is ExitReason.BUDGET_EXHAUSTED
    assert "2 iterations" in (view.output_text or "")


def test_calls_of_a_grace_reply_are_not_run_and_nothing_is_left_open(bench: Bench) -> None:
    """AC-27."""
    grace = asks(("send", "{}"), ("look", "{}"), text="let me check", tag="g")
    turn = bench.fresh(*calls(2), grace, iterations=2)
    bench.script(says("Hello again."))
    following = bench.run(bench.submit("And now?", session_id=turn.session_id))

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.BUDGET_EXHAUSTED, "let me check")
    assert bench.ledger.starts(turn.id) == ["i1-1", "i2-1"]
    assert {c: s for c, s in bench.statuses(turn.id).items() if c.startswith("g")} == {"g1": "not_run", "g2": "not_run"}
    assert "budget" in bench.results(turn.id)["g1"].content
    assert following.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.calls == 1


def test_a_grace_call_with_tools_has_its_calls_run_and_the_turn_ends_after_them(bench: Bench) -> None:
    grace = asks(("send", "{}"), text="one last thing", tag="g")
    turn = bench.fresh(*calls(1), grace, says("never asked for"), iterations=1, grace=Grace.TOOLS)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.BUDGET_EXHAUSTED, "one last thing")
    assert bench.statuses(turn.id)["g1"] == "succeeded"
    assert [r.may_call_tools for r in bench.model.requests] == [True, True]
    assert bench.events(turn.id).count("budget.grace") == 1
    assert bench.messages(turn.id)[-1].origin is Origin.TOOL, "no second last word is asked for"


def test_a_turn_without_grace_ends_with_the_results_of_its_last_iteration(bench: Bench) -> None:
    turn = bench.fresh(*calls(2), iterations=2, grace=Grace.OFF)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.grace_used) == (ExitReason.BUDGET_EXHAUSTED, False)
    assert "2 iterations" in (view.output_text or "")
    assert bench.model.calls == 2
    assert [m.origin for m in bench.messages(turn.id)][-1] is Origin.TOOL


def test_an_answer_in_the_last_iteration_is_an_answer_and_needs_no_grace(bench: Bench) -> None:
    turn = bench.fresh(*calls(1), says("Done."), iterations=2)

    assert (turn.exit_reason, bench.view(turn.id).grace_used) == (ExitReason.FINAL_ANSWER, False)


def test_a_budget_of_nothing_buys_nothing(bench: Bench) -> None:
    turn = bench.fresh(says("Done."), iterations=0)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.BUDGET_EXHAUSTED, 0)


def test_a_resumed_turn_goes_on_where_it_stopped_and_may_have_another_grace(bench: Bench) -> None:
    turn = bench.fresh(*calls(1), says("so far"), iterations=1)
    resume(bench, turn.id, iterations=2)
    model = bench.script(*calls(1), says("so far"), *calls(3)[1:], says("and no further"))

    bench.run(turn.id)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.BUDGET_EXHAUSTED, "and no further")
    assert (view.iterations_used, view.iterations_max, view.resumes) == (3, 3, 1)
    assert model.requests[0].messages[-1].text == history.RESUMED_NOTICE
    assert bench.ledger.starts(turn.id) == ["i1-1", "i2-1", "i3-1"]


def test_a_turn_stopped_in_its_grace_call_still_has_it_after_a_resume(bench: Bench) -> None:
    runtime = bench.runtime()

    def stopped(request: ModelRequest, _stop: StopSignal) -> Reply:
        bench.interrupt(request.messages[0].turn_id, runtime)
        raise CallInterrupted("stopped")

    bench.script(*calls(1), stopped)
    turn = bench.run(bench.submit(iterations=1), runtime)
    assert turn.exit_reason is ExitReason.INTERRUPTED_BY_USER
    resume(bench, turn.id)
    bench.script(*calls(1), says("partial summary"))

    bench.run(turn.id)

    assert bench.view(turn.id).output_text == "partial summary"
    assert bench.view(turn.id).exit_reason is ExitReason.BUDGET_EXHAUSTED


@pytest.mark.parametrize(
    ("replies", "settings", "raised", "exit_reason"),
    [
        ([says("")], {}, {}, ExitReason.EMPTY_RESPONSE),
        ([ModelError(ErrorClass.SERVER_ERROR, "500")], {}, {}, ExitReason.PROVIDER_FAILED),
        ([asks(("fly", "{}"), tag=f"f{n}") for n in range(3)], {}, {}, ExitReason.INVALID_TOOL_CALL),
        (calls(9), {"max_tokens_total": 20}, {"tokens": 100_000}, ExitReason.TOKEN_CAP),
        ([asks(("look", "{}"))], {"iterations": 1, "grace": Grace.OFF}, {"iterations": 5}, ExitReason.BUDGET_EXHAUSTED),
        ([says("Once upon a ti", finish=Finish.LENGTH)], {}, {}, ExitReason.OUTPUT_TRUNCATED),
        ([says("I cannot.", finish=Finish.REFUSAL)], {}, {}, ExitReason.REFUSED),
        ([ZeroDivisionError("a fault of ours")], {}, {}, ExitReason.INTERNAL_ERROR),
        ([asks(("look", "{}")), says("so far")], {"iterations": 1}, {"iterations": 5}, ExitReason.BUDGET_EXHAUSTED),
    ],
    ids=["empty", "failed", "invalid", "tokens", "iterations", "truncated", "refused", "fault", "grace"],
)
def test_every_ending_can_be_resumed_to_a_final_answer(
    bench: Bench,
    replies: list[Reply | Exception],
    settings: dict[str, Any],
    raised: dict[str, int],
    exit_reason: ExitReason,
) -> None:
    turn = bench.fresh(*replies, **settings)
    assert turn.exit_reason is exit_reason

    resume(bench, turn.id, **raised)
    bench.script(says("Done after all."))
    bench.run(turn.id)

    view = bench.view(turn.id)
    assert view.exit_reason is ExitReason.FINAL_ANSWER
    cut = "Once upon a ti" * 4 if exit_reason is ExitReason.OUTPUT_TRUNCATED else ""
    assert view.output_text == f"{cut}Done after all."
