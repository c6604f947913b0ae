"""What a turn has spent: every attempt once, what is known apart from what is estimated."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence import checkpoint, leases
from persistence.errors import LeaseLost
from persistence.leases import Held
from persistence.records.message import Effect
from persistence.records.outcome import Lost, ModelCall, Outcome
from persistence.records.spending import Estimate, Spending
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.store.outcomes import LEASE, USED, answer, claim, claimed, ending, model_call, results, store
from tests.support.workbench import Bench

CENT = Decimal("0.01")


def priced(turn: Turn, cost: Decimal | None, **changes: Any) -> Outcome:
    """An attempt that was answered, and what it costs."""
    return Outcome(turn.counters, model_call=replace(model_call(turn), cost_usd=cost, **changes))


def untold(turn: Turn, tokens: int, cost: Decimal | None) -> Outcome:
    """An attempt whose usage nobody told."""
    call = replace(model_call(turn, "timeout", usage=None), estimate=Estimate(tokens, cost))
    return Outcome(turn.counters, model_call=call)


def stored(bench: Bench, turn: Turn) -> Spending:
    return bench.load(turn.id).spending


def test_a_turn_that_was_answered_by_nobody_has_no_cost_at_all(bench: Bench) -> None:
    assert stored(bench, claimed(bench)) == Spending()


def test_what_each_attempt_costs_is_stored_to_the_last_digit_and_summed_in_the_same_statement(bench: Bench) -> None:
    turn = claimed(bench)
    costs = [Decimal("0.0000000001"), Decimal("12345.6789"), Decimal("0E-10")]

    for cost in costs:
        turn = store(bench, turn, priced(turn, cost))

    assert [c["cost_usd"] for c in bench.everything(turn.id)["model_calls"]] == costs
    assert stored(bench, turn) == turn.spending == Spending(cost_usd=Decimal("12345.6789000001"))


def test_a_failed_attempt_that_was_billed_counts_like_an_answer(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, priced(turn, CENT, error="malformed_stream"))
    turn = store(bench, turn, replace(answer(turn), model_call=replace(model_call(turn), cost_usd=CENT)))

    assert (stored(bench, turn).cost_usd, bench.load(turn.id).usage) == (2 * CENT, USED + USED)


def test_an_attempt_without_a_price_is_counted_and_adds_no_zero(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, priced(turn, None))
    assert stored(bench, turn) == Spending(unpriced_attempts=1)

    turn = store(bench, turn, priced(turn, CENT))

    assert stored(bench, turn) == turn.spending == Spending(cost_usd=CENT, unpriced_attempts=1)


def test_an_attempt_whose_usage_nobody_told_is_booked_at_its_estimate_and_apart(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, priced(turn, CENT))
    turn = store(bench, turn, untold(turn, 900, 3 * CENT))
    turn = store(bench, turn, untold(turn, 100, None))

    expected = Spending(CENT, unknown_attempts=2, estimated_tokens=1000, estimated_cost_usd=3 * CENT)
    assert stored(bench, turn) == turn.spending == expected
    calls = sorted(bench.everything(turn.id)["model_calls"], key=lambda c: c["position"])
    assert [(c["estimated_tokens"], c["cost_usd"]) for c in calls] == [(None, CENT), (900, 3 * CENT), (100, None)]
    assert bench.load(turn.id).usage == USED


def test_an_attempt_for_which_nothing_can_have_been_bought_costs_nothing(bench: Bench) -> None:
    turn = claimed(bench)

    refused = replace(model_call(turn, "rate_limit", usage=None), may_be_billed=False)
    turn = store(bench, turn, Outcome(turn.counters, model_call=refused))

    assert stored(bench, turn) == turn.spending == Spending()
    assert len(bench.everything(turn.id)["model_calls"]) == 1


def lost_in_a_call(bench: Bench, turn: Turn, times: int) -> Turn:
    """The turn as its next owner holds it, after so many owners were lost in the middle of a model call."""
    for n in range(times):
        bench.kill_owner(turn.id)
        turn = claim(bench.database, turn.id, f"worker-{n + 2}", alone=True)
    return turn


def test_attempts_that_owners_were_lost_in_are_estimated_by_the_next_one_once(bench: Bench) -> None:
    turn = lost_in_a_call(bench, claimed(bench), 2)
    assert turn.spending == Spending(unknown_attempts=2, lost_attempts=2)

    lost = Lost(2, Estimate(500, CENT))
    turn = store(bench, turn, replace(priced(turn, CENT), lost=lost))

    expected = Spending(CENT, unknown_attempts=2, estimated_tokens=1000, estimated_cost_usd=2 * CENT)
    assert stored(bench, turn) == turn.spending == expected
    calls = sorted(bench.everything(turn.id)["model_calls"], key=lambda c: c["fencing_token"])
    assert [(c["error"], c["estimated_tokens"], c["cost_usd"]) for c in calls] == [
        ("outcome_unknown", 500, CENT),
        ("outcome_unknown", 500, CENT),
        (None, None, CENT),
    ]


def test_a_lost_attempt_is_estimated_where_no_call_follows_and_where_it_has_no_price(bench: Bench) -> None:
    turn = lost_in_a_call(bench, claimed(bench), 1)

    turn = store(bench, turn, replace(ending(turn), lost=Lost(1, Estimate(500))))

    assert stored(bench, turn) == turn.spending == Spending(unknown_attempts=1, estimated_tokens=500)


def test_a_call_lost_after_one_was_estimated_waits_for_its_own_estimate(bench: Bench) -> None:
    turn = lost_in_a_call(bench, claimed(bench), 1)
    turn = store(bench, turn, Outcome(turn.counters, lost=Lost(1, Estimate(500, CENT))))

    turn = lost_in_a_call(bench, turn, 1)

    assert (turn.spending.lost_attempts, turn.spending.unknown_attempts) == (1, 2)
    turn = store(bench, turn, Outcome(turn.counters, lost=Lost(1, Estimate(70, CENT))))
    assert (stored(bench, turn).estimated_tokens, stored(bench, turn).lost_attempts) == (570, 0)


def test_a_call_that_was_handed_back_in_its_middle_is_lost_like_that_of_a_dead_owner(bench: Bench) -> None:
    turn = claimed(bench)

    leases.hand_back(bench.database, Held(turn.id, turn.fencing_token))

    assert stored(bench, turn) == Spending(unknown_attempts=1, lost_attempts=1)


@pytest.mark.parametrize("is_lost", [False, True])
def test_nothing_is_booked_twice_when_the_answer_of_postgres_is_lost(bench: Bench, is_lost: bool) -> None:
    turn = lost_in_a_call(bench, claimed(bench), 1)
    lost = Lost(1, Estimate(500, CENT)) if is_lost else None
    outcome = replace(untold(turn, 900, CENT), lost=lost)

    news = [checkpoint.store(bench.database, turn, outcome, lease=LEASE) for _ in range(3)]

    after = turn.after(outcome, news[-1])
    assert stored(bench, turn) == after.spending
    assert after.spending.estimated_cost_usd == (2 if is_lost else 1) * CENT
    assert len(bench.everything(turn.id)["model_calls"]) == 2


def test_a_stale_owner_books_nothing(bench: Bench) -> None:
    old = lost_in_a_call(bench, claimed(bench), 1)
    lost_in_a_call(bench, old, 1)
    before = bench.everything(old.id)

    for outcome in (priced(old, CENT), Outcome(old.counters, lost=Lost(1, Estimate(500, CENT)))):
        with pytest.raises(LeaseLost):
            checkpoint.store(bench.database, old, outcome, lease=LEASE)

    assert bench.everything(old.id) == before


def test_steps_that_buy_nothing_leave_the_sums_alone(bench: Bench) -> None:
    turn = claimed(bench)
    turn = store(bench, turn, replace(answer(turn, Effect.READS), model_call=priced(turn, CENT).model_call))
    before = stored(bench, turn)

    turn = store(bench, turn, results(turn))

    assert stored(bench, turn) == before


amounts = st.none() | st.decimals(0, 10**6, places=9)
counts = st.integers(0, 10**12)
reported = st.builds(Usage, counts, counts, counts, counts, counts)
calls = st.builds(
    lambda usage, cost, billed, guess, guessed: ModelCall(
        "p", "m", 1, 0.1, None, usage, cost_usd=cost if usage else None, may_be_billed=billed,
        estimate=Estimate(guess, guessed) if usage is None and billed else None,
    ),
    st.none() | reported, amounts, st.booleans(), counts, amounts,
)  # fmt: skip


@given(st.lists(calls, max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sums_are_those_of_the_attempts_whatever_they_were(bench: Bench, made: list[ModelCall]) -> None:
    turn = claimed(bench)
    for call in made:
        turn = store(bench, turn, Outcome(turn.counters, model_call=call))

    assert stored(bench, turn) == turn.spending == sum((c.spending for c in made), Spending())
    assert bench.load(turn.id).usage == turn.usage == sum((c.usage or Usage() for c in made), Usage())
