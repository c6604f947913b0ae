"""What a turn does while the rate guard holds its call, and when another key is worth a try.

AC-20, AC-21: waiting for others' throttling consumes no attempt, and is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from orchestration import answers, holding
from orchestration.decide import decide
from orchestration.errors import ErrorClass
from orchestration.guarding import Advice, Held, HeldBy
from orchestration.remedies import LONGEST_WAIT_S
from orchestration.steps import Backoff, CallModel, End, FallBack, GiveUpWorker, Signals
from persistence.records.outcome import Counters
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn
from tests.pure.turns import asked, turn

CALM = Signals()
CHAIN = ("second:medium",)
MODEL = "scripted:large"


def held(by: HeldBy, wait_s: float, *, times: int = 1, counters: Counters | None = None) -> Counters:
    found = counters or Counters()
    for _ in range(times):
        found = holding.held(found, Held(by, wait_s))
    return found


def begun(by: HeldBy, wait_s: float, *, times: int = 1, **settings: Any) -> Turn:
    """A turn that has had an answer already, and whose next call is held."""
    return turn(asked(), counters=held(by, wait_s, times=times, counters=Counters(iterations_used=1)), **settings)


@pytest.mark.parametrize("by", HeldBy)
def test_a_short_hold_is_sat_out_in_place(by: HeldBy) -> None:
    assert decide(turn(counters=held(by, 7.5)), CALM) == Backoff(7.5)


@pytest.mark.parametrize("by", HeldBy)
def test_a_long_hold_gives_the_worker_up(by: HeldBy) -> None:
    waiting = turn(counters=held(by, 90.0), retry_in_place_s=30)

    assert decide(waiting, CALM) == GiveUpWorker(WaitingFor.RETRY, 90.0)


def test_after_its_rest_the_turn_asks_again() -> None:
    assert decide(turn(counters=held(HeldBy.COOLING_DOWN, 7.5)).rested(), CALM) == CallModel(MODEL)


def test_after_a_wait_without_a_worker_nothing_is_due_but_the_holds_stay_counted() -> None:
    after = answers.rested(held(HeldBy.OWN_LIMITS, 90.0, times=3))

    assert holding.of(after) is None
    assert after.remedies[holding.HOLDS] == 3
    assert decide(turn(counters=after), CALM) == CallModel(MODEL)


def test_holds_consume_no_attempt() -> None:
    counters = held(HeldBy.COOLING_DOWN, 1.0, times=50, counters=Counters(attempts=2, last_error="rate_limit"))

    assert (counters.attempts, counters.last_error) == (2, "rate_limit")


def test_each_hold_of_one_call_is_longer_than_the_first_ones() -> None:
    waits: list[float] = []
    for times in range(1, 60):
        step = decide(turn(counters=held(HeldBy.OWN_LIMITS, 0.001, times=times), retry_in_place_s=100), CALM)
        assert isinstance(step, Backoff)
        waits.append(step.wait_s)

    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.2, 60.0)


def test_an_absurd_wait_is_not_believed() -> None:
    assert decide(turn(counters=held(HeldBy.COOLING_DOWN, 1e9)), CALM) == GiveUpWorker(WaitingFor.RETRY, LONGEST_WAIT_S)


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        (HeldBy.COOLING_DOWN, ExitReason.RATE_LIMITED),
        (HeldBy.OWN_LIMITS, ExitReason.RATE_LIMITED),
        (HeldBy.ENDPOINT_DOWN, ExitReason.PROVIDER_FAILED),
        (HeldBy.NO_USABLE_KEY, ExitReason.PROVIDER_FAILED),
    ],
)
def test_a_call_that_is_held_for_ever_ends_its_turn_by_name(by: HeldBy, reason: ExitReason) -> None:
    step = decide(turn(counters=held(by, 1.0, times=holding.MAX_HOLDS + 1)), CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is reason
    assert MODEL in (step.ending.message or "")


@pytest.mark.parametrize("by", [HeldBy.COOLING_DOWN, HeldBy.ENDPOINT_DOWN, HeldBy.NO_USABLE_KEY])
def test_a_turn_begins_with_its_fallback_while_its_own_model_cools_down(by: HeldBy) -> None:
    assert decide(turn(counters=held(by, 0.5), fallbacks=CHAIN), CALM) == FallBack(1)


def test_a_turn_does_not_leave_its_model_for_a_moment_of_the_configured_pace() -> None:
    assert decide(turn(counters=held(HeldBy.OWN_LIMITS, 0.5), fallbacks=CHAIN), CALM) == Backoff(0.5)


@pytest.mark.parametrize(
    ("by", "wait_s", "times", "falls_back"),
    [
        (HeldBy.COOLING_DOWN, 5.0, 1, False),
        (HeldBy.COOLING_DOWN, 31.0, 1, True),
        (HeldBy.COOLING_DOWN, 5.0, 3, True),
        (HeldBy.OWN_LIMITS, 31.0, 1, True),
        (HeldBy.ENDPOINT_DOWN, 0.5, 1, True),
        (HeldBy.NO_USABLE_KEY, 0.5, 1, True),
    ],
)
def test_a_turn_under_way_leaves_its_model_where_waiting_for_it_does_not_pay(
    by: HeldBy, wait_s: float, times: int, falls_back: bool
) -> None:
    step = decide(begun(by, wait_s, times=times, fallbacks=CHAIN), CALM)

    assert step == (FallBack(1) if falls_back else Backoff(wait_s))


def test_the_fallback_says_why_and_begins_without_holds() -> None:
    outcome = answers.fell_back(turn(counters=held(HeldBy.ENDPOINT_DOWN, 5.0), fallbacks=CHAIN), 1)

    assert outcome.events[0].payload == {"from": MODEL, "to": "second:medium", "error": "endpoint_down"}
    assert not outcome.counters.remedies


def test_the_last_model_of_the_chain_knows_that_it_is() -> None:
    assert decide(turn(fallbacks=CHAIN), CALM) == CallModel(MODEL, is_last=False)
    assert decide(turn(fallbacks=CHAIN, counters=Counters(model_index=1)), CALM) == CallModel(CHAIN[0], is_last=True)


@pytest.mark.parametrize("error", [ErrorClass.AUTH, ErrorClass.BILLING, ErrorClass.RATE_LIMIT])
def test_a_key_that_is_refused_costs_no_attempt_while_another_is_usable(error: ErrorClass) -> None:
    before = Counters(attempts=1, last_error="server_error", retry_after_s=3.0)

    after = holding.with_another_key(before, error, Advice(other_keys=1), refreshed=None)

    assert after is not None
    assert (after.attempts, after.last_error, after.retry_after_s) == (1, None, None)
    assert after.remedies[holding.ROTATIONS] == 1
    assert decide(turn(counters=after), CALM) == CallModel(MODEL)


@pytest.mark.parametrize("error", [e for e in ErrorClass if e not in ("auth", "billing", "rate_limit")])
def test_no_other_error_is_taken_to_another_key(error: ErrorClass) -> None:
    assert holding.with_another_key(Counters(), error, Advice(other_keys=1), refreshed=None) is None


def test_without_another_usable_key_the_attempt_counts() -> None:
    assert holding.with_another_key(Counters(), ErrorClass.AUTH, Advice(), refreshed=None) is None


def test_rotations_are_bounded() -> None:
    often = Counters(remedies=MappingProxyType({holding.ROTATIONS: holding.MAX_ROTATIONS}))

    assert holding.with_another_key(often, ErrorClass.RATE_LIMIT, Advice(other_keys=9), refreshed=None) is None


def test_a_key_is_fetched_anew_twice_in_a_turn_whatever_is_answered_between() -> None:
    counters, refreshed = Counters(), 0
    while holding.may_refresh(counters, 3):
        other = holding.with_another_key(counters, ErrorClass.AUTH, Advice(), refreshed=3)
        assert other is not None
        counters, refreshed = holding.answered(other), refreshed + 1

    assert refreshed == 2
    assert holding.may_refresh(counters, 4)


def test_a_request_that_was_too_large_stays_so_with_another_key() -> None:
    before = Counters(last_error=ErrorClass.CONTEXT_OVERFLOW)

    after = holding.with_another_key(before, ErrorClass.BILLING, Advice(other_keys=1), refreshed=None)

    assert after is not None
    assert after.last_error == ErrorClass.CONTEXT_OVERFLOW


def test_an_answer_forgets_holds_and_rotations_alone() -> None:
    counters = replace(
        held(HeldBy.OWN_LIMITS, 1.0),
        remedies=MappingProxyType({holding.HOLDS: 3, holding.ROTATIONS: 2, "grace_answered": 1}),
    )

    assert holding.answered(counters).remedies == {"grace_answered": 1}


def test_a_grace_call_that_is_held_for_ever_ends_the_turn_as_out_of_budget() -> None:
    spent = Counters(iterations_used=10, grace_used=True)
    step = decide(turn(counters=held(HeldBy.COOLING_DOWN, 1.0, times=holding.MAX_HOLDS + 1, counters=spent)), CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.BUDGET_EXHAUSTED
