"""Tokens, money and time: what a turn may use, what it was charged, and what is left after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from orchestration import history
from orchestration.costs import LEAST_OUTPUT_TOKENS
from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import Finish, ModelRequest, Reply, StopSignal
from persistence import leases, resumption
from persistence.leases import Held
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from persistence.views import TurnView
from tests.store.outcomes import claim
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench

# What a bench charges for it: 0.01 for the request, 0.01 for the answer.
USED = Usage(10_000, 1_000)
TWO_CENTS = Decimal("0.02")
BILLED = ModelError(ErrorClass.MALFORMED_STREAM, "broken off", status=200, usage=USED)
_NO_TIME = timedelta(0)
TIMED_OUT = ModelError(ErrorClass.CALL_TIMEOUT, "no whole answer")
THROTTLED = ModelError(ErrorClass.RATE_LIMIT, "429", status=429)


def looks(count: int) -> list[Reply]:
    return [replace(asks(("look", "{}"), tag=f"i{n}-"), usage=USED) for n in range(count)]


def answers(text: str = "Done.", **changes: Any) -> Reply:
    return replace(says(text), usage=USED, **changes)


def resume(bench: Bench, turn: Turn, **raised: Any) -> None:
    resumption.resume(bench.database, turn.id, notice=history.RESUMED_NOTICE, **raised)


def all_usd(view: TurnView) -> Decimal:
    return view.spending.all_usd


def test_every_answer_is_charged_and_the_sum_is_what_show_tells(bench: Bench) -> None:
    turn = bench.fresh(*looks(2), answers())

    view = bench.view(turn.id)
    assert (view.spending.total_usd, view.usage.total) == (3 * TWO_CENTS, 3 * USED.total)
    assert [c["cost_usd"] for c in bench.everything(turn.id)["model_calls"]] == [TWO_CENTS] * 3


def test_a_call_that_the_money_does_not_reach_for_is_not_made(bench: Bench) -> None:
    turn = bench.fresh(*looks(9), max_cost_usd=0.055)

    view = bench.view(turn.id)
    assert (view.status, view.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.COST_CAP)
    assert (bench.model.calls, view.spending.total_usd) == (2, 2 * TWO_CENTS)
    assert "$0.015 of the cap of $0.055 are left" in (view.message or "")
    assert set(bench.statuses(turn.id).values()) == {"succeeded"}


def test_a_call_that_the_tokens_do_not_reach_for_is_not_made(bench: Bench) -> None:
    turn = bench.fresh(*looks(9), max_tokens_total=30_000)

    view = bench.view(turn.id)
    assert (view.exit_reason, bench.model.calls, view.usage.total) == (ExitReason.TOKEN_CAP, 2, 22_000)
    assert "8000 of the cap of 30000 tokens are left" in (view.message or "")


def test_a_cap_too_small_for_any_call_buys_nothing(bench: Bench) -> None:
    turn = bench.fresh(answers(), max_tokens_total=100)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.TOKEN_CAP, 0)


def test_a_resume_with_more_money_goes_on_where_the_cap_stopped_it(bench: Bench) -> None:
    turn = bench.fresh(*looks(9), max_cost_usd=0.055)

    resume(bench, turn, cost=Decimal(1))
    model = bench.script(*looks(2), answers("Done after all."))
    bench.run(turn.id)

    view = bench.view(turn.id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Done after all.")
    assert (model.calls, view.spending.total_usd) == (1, 3 * TWO_CENTS)


def test_a_resume_with_too_little_money_ends_at_once_and_buys_nothing(bench: Bench) -> None:
    turn = bench.fresh(*looks(9), max_cost_usd=0.055)

    resume(bench, turn, cost=Decimal("0.0001"))
    model = bench.script(answers())
    turn = bench.run(turn.id)

    assert (turn.exit_reason, model.calls) == (ExitReason.COST_CAP, 0)


def test_failed_attempts_that_were_billed_count(bench: Bench) -> None:
    bench.script(answers(), faults=[BILLED, BILLED])
    turn = bench.run(bench.submit())
    assert bench.view(turn.id).spending.total_usd == 3 * TWO_CENTS

    bench.script(answers(), faults=[BILLED, BILLED, BILLED])
    turn = bench.run(bench.submit(max_cost_usd=0.05, attempts=9))

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.COST_CAP, 2)


def test_failed_attempts_that_were_not_billed_cost_nothing(bench: Bench) -> None:
    bench.script(answers(), faults=[THROTTLED, THROTTLED])

    turn = bench.run(bench.submit())

    assert bench.view(turn.id).spending.unknown_attempts == 0
    assert all_usd(bench.view(turn.id)) == TWO_CENTS


@pytest.mark.parametrize("fault", [TIMED_OUT, ModelError(ErrorClass.MALFORMED_STREAM, "cut", status=200)], ids=str)
def test_an_attempt_that_told_no_usage_is_estimated_and_shown_apart(bench: Bench, fault: ModelError) -> None:
    bench.script(answers(), faults=[fault])

    view = bench.view(bench.run(bench.submit()).id)

    assert (view.spending.total_usd, view.spending.unknown_attempts) == (TWO_CENTS, 1)
    assert view.spending.estimated_tokens > LEAST_OUTPUT_TOKENS
    assert (view.spending.estimated_cost_usd or 0) > Decimal(10 * LEAST_OUTPUT_TOKENS) / 1_000_000


def test_estimates_count_towards_the_cap(bench: Bench) -> None:
    bench.script(answers(), faults=[TIMED_OUT] * 9)

    turn = bench.run(bench.submit(max_tokens_total=6_000, attempts=9))

    assert turn.exit_reason is ExitReason.TOKEN_CAP
    assert 2 <= bench.model.calls <= 5


def test_a_call_stopped_by_an_interrupt_is_estimated(bench: Bench) -> None:
    runtime = bench.runtime()

    def stopped(request: ModelRequest, _stop: StopSignal) -> Reply:
        bench.interrupt(request.messages[0].turn_id, runtime)
        raise CallInterrupted("stopped")

    bench.script(stopped)
    view = bench.view(bench.run(bench.submit(), runtime).id)

    assert (view.spending.total_usd, view.spending.unknown_attempts) == (None, 1)
    assert view.spending.estimated_tokens > LEAST_OUTPUT_TOKENS


def leaves(bench: Bench, turn: Turn) -> None:
    leases.hand_back(bench.database, Held(turn.id, turn.fencing_token))


def dies(bench: Bench, turn: Turn) -> None:
    bench.kill_owner(turn.id)


@pytest.mark.parametrize("how", [dies, leaves])
def test_a_call_that_its_owner_was_lost_in_is_estimated_by_the_next(
    bench: Bench, how: Callable[[Bench, Turn], None]
) -> None:
    bench.script(*looks(1), answers())
    turn_id = bench.submit()
    how(bench, claim(bench.database, turn_id))

    bench.run(turn_id)

    view = bench.view(turn_id)
    assert (view.spending.total_usd, view.spending.unknown_attempts) == (2 * TWO_CENTS, 1)
    first = min(bench.everything(turn_id)["model_calls"], key=lambda c: c["fencing_token"])
    assert (first["error"], first["estimated_tokens"]) == ("outcome_unknown", view.spending.estimated_tokens)
    assert first["cost_usd"] == view.spending.estimated_cost_usd


def test_crashes_are_no_way_around_a_cap(bench: Bench) -> None:
    bench.script(*looks(1), answers())
    turn_id = bench.submit(max_tokens_total=6_000, max_crashes=99, attempts=99)
    for n in range(5):
        bench.kill_owner(claim(bench.database, turn_id, f"worker-{n}", alone=True).id)

    turn = bench.run(turn_id, alone=True)

    view = bench.view(turn_id)
    assert (turn.exit_reason, bench.model.calls) == (ExitReason.TOKEN_CAP, 0)
    assert (view.spending.unknown_attempts, turn.spending.lost_attempts) == (5, 0)


def test_a_turn_that_is_handed_round_at_every_step_keeps_its_cap(bench: Bench) -> None:
    bench.script(*looks(9))
    turn_id = bench.submit(max_cost_usd=0.055)
    for n in range(40):
        if bench.view(turn_id).status is TurnStatus.QUEUED:
            bench.run(turn_id, bench.runtime(f"worker-{n}", slice_=_NO_TIME))

    view = bench.view(turn_id)
    assert (view.exit_reason, view.spending.total_usd) == (ExitReason.COST_CAP, 2 * TWO_CENTS)


def test_a_lost_call_of_a_turn_that_is_interrupted_in_the_queue_has_no_estimate_and_is_shown(bench: Bench) -> None:
    turn_id = bench.submit()
    bench.kill_owner(claim(bench.database, turn_id).id)

    bench.interrupt(turn_id)

    spending = bench.view(turn_id).spending
    assert (spending.unknown_attempts, spending.estimated_tokens) == (1, 0)


def test_an_answer_is_made_to_fit_into_what_is_left_and_what_is_cut_there_ends_by_the_cap(bench: Bench) -> None:
    turn = bench.fresh(*looks(1), answers("Once upon a ti", finish=Finish.LENGTH), max_tokens_total=25_000)

    view = bench.view(turn.id)
    first, second = (r.max_output_tokens for r in bench.model.requests)
    assert (view.exit_reason, view.output_text) == (ExitReason.TOKEN_CAP, "Once upon a ti")
    assert first is None
    assert LEAST_OUTPUT_TOKENS < (second or 0) < 25_000 - USED.total - USED.input_tokens
    assert bench.events(turn.id)[-2:] == ["model.answered", "turn.ended"]


def test_a_call_cut_in_its_arguments_at_the_cap_is_not_asked_again(bench: Bench) -> None:
    cut = replace(asks(("look", '{"what": "ar'), finish=Finish.LENGTH), usage=Usage(10_000, 4_000))

    turn = bench.fresh(cut, max_tokens_total=15_000)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.TOKEN_CAP, 1)


def test_without_a_price_money_is_not_spent_and_another_worker_may_know_one(bench: Bench) -> None:
    bench.script(answers())
    turn_id = bench.submit(max_cost_usd=1.0)

    waiting = bench.run(turn_id, bench.runtime(prices=lambda _provider, _model, _usage: None))
    assert (waiting.status, bench.model.calls) == (TurnStatus.WAITING, 0)
    bench.end_wait(turn_id)

    assert bench.run(turn_id).exit_reason is ExitReason.FINAL_ANSWER


def test_where_no_worker_knows_a_price_a_capped_turn_ends_by_name(bench: Bench) -> None:
    bench.script(answers())
    turn_id = bench.submit(max_cost_usd=1.0)
    for _ in range(9):
        if bench.view(turn_id).status is TurnStatus.QUEUED:
            bench.run(turn_id, bench.runtime(prices=lambda _provider, _model, _usage: None))
            bench.end_wait(turn_id)

    assert (bench.view(turn_id).exit_reason, bench.model.calls) == (ExitReason.CONFIG_ERROR, 0)


def test_without_a_price_a_turn_without_a_cap_goes_on_and_its_cost_is_unknown(bench: Bench) -> None:
    bench.script(answers())

    turn = bench.run(bench.submit(), bench.runtime(prices=lambda _provider, _model, _usage: None))

    spending = bench.view(turn.id).spending
    assert (turn.exit_reason, spending.total_usd, spending.unpriced_attempts) == (ExitReason.FINAL_ANSWER, None, 1)


# -- time --------------------------------------------------------------------------------------------------------------


def until_the_limit(request: ModelRequest, stop: StopSignal) -> Reply:
    """A provider that says nothing until the caller has had enough."""
    stop.wait(request.limits.call_s)
    raise TIMED_OUT


def test_a_call_is_cut_at_the_deadline_and_the_turn_ends_by_that_name(bench: Bench) -> None:
    started = time.monotonic()

    turn = bench.fresh(until_the_limit, deadline_s=1.6, attempts=1)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.DEADLINE, 1)
    assert bench.model.requests[0].limits.call_s < 1.6
    assert time.monotonic() - started < 10.0


def test_a_pause_ends_at_the_deadline(bench: Bench) -> None:
    bench.script(answers(), faults=[TIMED_OUT])

    turn = bench.run(bench.submit(deadline_s=1.4, retry_base_s=25.0))

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.DEADLINE, 1)


def test_a_call_for_which_no_time_is_left_is_not_made(bench: Bench) -> None:
    turn = bench.fresh(answers(), deadline_s=0.5)

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.DEADLINE, 0)


def test_a_call_that_is_done_in_time_has_the_agents_own_limit(bench: Bench) -> None:
    turn = bench.fresh(answers(), deadline_s=3_600.0, call_s=77.0)

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.model.requests[0].limits.call_s == 77.0
