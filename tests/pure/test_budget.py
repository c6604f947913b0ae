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


def test_a_refund_is_given_once_for_its_reason_and_iteration() -> None:
    spent = IterationBudget(2, 2)

    once = spent.refund("compressed", 2)

    assert (once.used, once.remaining) == (1, 1)
    assert once.refund("compressed", 2) == once
    assert once.refund("compressed", 1).used == 0
    assert once.refund("another reason", 2).used == 0


def test_nothing_is_refunded_of_nothing() -> None:
    assert IterationBudget(0, 5).refund("compressed", 1) == IterationBudget(0, 5)


def test_a_budget_that_was_lowered_has_nothing_left_and_no_debt() -> None:
    assert IterationBudget(7, 5).remaining == 0


moves = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("ab"), st.integers(1, 3))), max_size=30)


@given(st.integers(0, 6), moves)
def test_whatever_is_done_a_budget_stays_within_its_bounds(maximum: int, done: list[tuple[str, int] | None]) -> None:
    budget = IterationBudget(0, maximum)
    for refund in done:
        budget = budget.refund(*refund) if refund else budget.consume() or budget
        assert 0 <= budget.used <= maximum
        assert budget.used + budget.remaining == maximum
