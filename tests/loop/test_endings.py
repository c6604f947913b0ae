"""Whole turns, from submit to the ending that they deserve."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import CallRun, Finish, ModelRequest, Reply, StopSignal
from orchestration.tools.toolbox import RegistryToolbox
from persistence.records.message import Native, Thinking
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench


def test_a_turn_of_words_only_is_completed(bench: Bench) -> None:
    turn = bench.fresh(says("Hello."))

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason, view.output_text) == (
        TurnStatus.COMPLETED,
        ExitReason.FINAL_ANSWER,
        "Hello.",
    )
    assert (view.iterations_used, view.usage) == (1, Usage(10, 2))
    assert bench.model.calls == 1
    assert bench.events(turn.id) == ["turn.submitted", "turn.claimed", "model.answered", "turn.ended"]


def test_a_turn_with_tools_is_completed_and_a_following_one_sees_all_of_it(bench: Bench) -> None:
    first = bench.fresh(asks(("look", "{}"), ("send", '{"to":"bob"}'), text="I will."), says("Done."))
    bench.script(says("As I said."))

    second = bench.run(bench.submit("What did you do?", session_id=first.session_id))

    assert bench.statuses(first.id) == {"c1": "succeeded", "c2": "succeeded"}
    assert [r.content for r in bench.results(first.id).values()] == ["saw around", "sent to bob"]
    assert [m.text for m in bench.model.requests[0].messages] == ["Do it.", "I will.", "", "Done.", "What did you do?"]
    assert second.exit_reason is ExitReason.FINAL_ANSWER


def test_a_clean_iteration_makes_two_fenced_statements(bench: Bench) -> None:
    calls = [asks(("look", f'{{"what":"{n}"}}'), tag=f"i{n}-") for n in range(5)]

    turn = bench.fresh(*calls, says("Done."))

    assert turn.position == 2 * 5 + 1 + 1, "two an iteration, the last answer, the ending"


def test_a_group_of_once_calls_makes_one_statement_more(bench: Bench) -> None:
    turn = bench.fresh(asks(("post", "{}"), ("post", "{}"), ("post", "{}")), says("Done."))

    assert turn.position == 3 + 1 + 1
    assert bench.ledger.starts(turn.id) != []
    assert sorted(bench.ledger.starts(turn.id)) == ["c1", "c2", "c3"]


@pytest.mark.parametrize(
    ("error", "exit_reason", "attempts"),
    [
        (ErrorClass.SERVER_ERROR, ExitReason.PROVIDER_FAILED, 3),
        (ErrorClass.RATE_LIMIT, ExitReason.RATE_LIMITED, 3),
        (ErrorClass.AUTH, ExitReason.PROVIDER_FAILED, 1),
        (ErrorClass.CONTEXT_OVERFLOW, ExitReason.CONTEXT_OVERFLOW, 1),
        (ErrorClass.CONTENT_POLICY, ExitReason.REFUSED, 1),
    ],
)
def test_a_model_that_always_fails_ends_the_turn_by_name_after_its_attempts(
    bench: Bench, error: ErrorClass, exit_reason: ExitReason, attempts: int
) -> None:
    bench.script(ModelError(error, "no", status=500))

    turn = bench.run(bench.submit())

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, exit_reason)
    assert bench.model.calls == attempts
    assert view.message is not None
    assert error.value in view.message


@pytest.mark.parametrize(
    "empty",
    [says(""), says(" \n"), Reply((Thinking("hm", Native("scripted", {})),), Finish.STOP, Usage(1, 1), "scripted")],
    ids=["nothing", "white space", "thinking only"],
)
def test_an_empty_reply_is_a_failed_attempt_and_never_the_output(bench: Bench, empty: Reply) -> None:
    turn = bench.fresh(asks(("look", "{}"), text="Now step 5."), empty)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.EMPTY_RESPONSE, "")
    assert bench.model.calls == 1 + 3
    assert view.usage.output_tokens == 5 + 3 * (empty.usage or Usage()).output_tokens


def test_a_refusal_ends_the_turn_as_refused(bench: Bench) -> None:
    turn = bench.fresh(says("I cannot.", finish=Finish.REFUSAL))

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.REFUSED, 1)


def test_words_cut_at_the_output_limit_are_kept_and_the_ending_says_so(bench: Bench) -> None:
    turn = bench.fresh(says("Once upon a ti", finish=Finish.LENGTH), continuations=0)

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.OUTPUT_TRUNCATED)
    assert view.output_text == "Once upon a ti"


def test_a_turn_ends_when_its_tokens_are_spent_and_not_before_its_calls_are_answered(bench: Bench) -> None:
    more_than_the_cap = replace(asks(("look", "{}")), usage=Usage(20_000, 5))

    turn = bench.fresh(more_than_the_cap, max_tokens_total=14_000)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.TOKEN_CAP, 1)
    assert bench.statuses(turn.id) == {"c1": "succeeded"}


def test_an_answer_that_reaches_the_cap_is_still_the_answer(bench: Bench) -> None:
    turn = bench.fresh(replace(says("Done."), usage=Usage(14_000)), max_tokens_total=14_000)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER


def test_a_turn_ends_at_its_deadline_with_what_it_has(bench: Bench) -> None:
    def slow(_request: ModelRequest, _stop: StopSignal) -> Reply:
        bench.database.rows("UPDATE turns SET deadline = now() WHERE id = %(id)s", {"id": turn_id})
        return asks(("look", "{}"), ("send", "{}"))

    bench.script(slow)
    turn_id = bench.submit(deadline_s=3600)

    turn = bench.run(turn_id)

    assert (turn.status, turn.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.DEADLINE)
    assert bench.statuses(turn_id) == {"c1": "not_run", "c2": "not_run"}
    assert bench.ledger.starts(turn_id) == []


def test_a_turn_whose_deadline_passed_in_the_queue_buys_nothing(bench: Bench) -> None:
    bench.script(says("Too late."))
    turn_id = bench.submit()
    bench.database.rows("UPDATE turns SET deadline = now() WHERE id = %(id)s", {"id": turn_id})

    turn = bench.run(turn_id)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.DEADLINE, 0)


def test_a_fault_of_ours_ends_the_turn_by_name_and_not_the_worker(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise ZeroDivisionError("the fault")

    with caplog.at_level(logging.ERROR):
        turn = bench.fresh(fault)

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.FAILED, ExitReason.INTERNAL_ERROR)
    assert "the fault" not in (view.message or "")
    assert "the fault" in caplog.text


def test_an_answer_that_cannot_be_stored_ends_the_turn_by_name(bench: Bench) -> None:
    more_than_a_bigint = Usage(input_tokens=2**63)

    turn = bench.fresh(replace(says("Done."), usage=more_than_a_bigint))

    assert turn.exit_reason is ExitReason.INTERNAL_ERROR


class Faulty(RegistryToolbox):
    """A toolbox with a fault of ours: the calls have run, and their results are gone."""

    def run(self, *args: Any, **how: Any) -> list[CallRun]:
        super().run(*args, **how)
        raise ZeroDivisionError("after the calls")


def test_of_a_call_that_was_under_way_at_a_fault_of_ours_the_model_is_told_that_its_outcome_is_unknown(
    bench: Bench,
) -> None:
    bench.script(asks(("send", "{}"), ("look", "{}"), ("send", "{}")))
    turn_id = bench.submit()

    turn = bench.run(turn_id, bench.runtime(toolbox=Faulty()))

    assert turn.exit_reason is ExitReason.INTERNAL_ERROR
    assert bench.ledger.starts(turn_id) == ["c1", "c2"]
    assert bench.statuses(turn_id) == {"c1": "unknown", "c2": "unknown", "c3": "not_run"}
