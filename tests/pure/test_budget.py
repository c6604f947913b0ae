"""The iteration budget, a value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestration.budget import IterationBudget
from persistence.records.outcome import Counters
from tests.pure.turns import turn


def test_a_budget_is_consumed_until_it_is_spent() -> None:
    budget = IterationBudget(0, 2)

    first = budget.consume()
    second = first.consume() if first else None

    assert (first, second) == (IterationBudget(1, 2), IterationBudget(2, 2))
    assert second is not None
    assert (second.remaining, second.consume()) == (0, None)


def test_the_budget_of_a_turn_is_what_its_row_says() -> None:
    budget = IterationBudget.of(turn(counters=Counters(iterations_used=3)))

    assert (budget.used, budget.maximum, budget.remaining) == (3, 10, 7)


def test_a_budget_that_was_lowered_has_nothing_left_and_no_debt() -> None:
    assert IterationBudget(7, 5).remaining == 0


@given(st.integers(0, 6), st.integers(0, 30))
def test_however_often_it_is_consumed_a_budget_stays_within_its_bounds(maximum: int, times: int) -> None:
    budget = IterationBudget(0, maximum)
    for _ in range(times):
        budget = budget.consume() or budget
        assert 0 <= budget.used <= maximum
        assert budget.used + budget.remaining == maximum
