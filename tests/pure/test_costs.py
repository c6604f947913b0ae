"""What a call may come to, what it came to, and that no cap is ever passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.costs import (
    LEAST_OUTPUT_TOKENS,
    USUAL_OUTPUT_TOKENS,
    Allowance,
    Prices,
    allow,
    booked,
    dollars,
    spent_up,
)
from orchestration.errors import ConfigError, ErrorClass, ModelError
from persistence.records import parts
from persistence.records.message import Origin, Role, Text
from persistence.records.outcome import Counters, Ending, Event, Lost, ModelCall, News, Outcome
from persistence.records.spending import Estimate, Spending
from persistence.records.status import ExitReason
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.pure import turns

MODEL = "scripted:large"
REQUEST = 1_000


def dollar_a_million(_provider: str, _model: str, usage: Usage) -> Decimal | None:
    """Output at ten dollars a million tokens, all input at one, what is written to a cache at two."""
    weighed = usage.input_tokens + usage.cache_read_tokens + 2 * usage.cache_write_tokens + 10 * usage.output_tokens
    return Decimal(weighed) / 1_000_000


def unknown(_provider: str, _model: str, _usage: Usage) -> Decimal | None:
    return None


def free(_provider: str, _model: str, _usage: Usage) -> Decimal | None:
    return Decimal(0)


def allowed(t: Turn, prices: Prices = unknown, request: int = REQUEST) -> Allowance:
    found = allow(t, MODEL, lambda: request, prices)
    assert isinstance(found, Allowance), found
    return found


def refused(t: Turn, prices: Prices = unknown, request: int = REQUEST) -> Ending:
    found = allow(t, MODEL, lambda: request, prices)
    assert isinstance(found, Ending), found
    return found


def turn(max_tokens_total: int | None = None, max_cost_usd: Decimal | None = None, **changes: Any) -> Turn:
    """A running turn with these caps, which are the turn's own and not those that its agent began with."""
    return replace(turns.turn(**changes), max_tokens_total=max_tokens_total, max_cost_usd=max_cost_usd)


def of_money(cap: str, **changes: Any) -> Turn:
    return turn(max_cost_usd=Decimal(cap), **changes)


# -- before a call -----------------------------------------------------------------------------------------------------


def test_without_caps_nobody_asks_how_large_a_request_is() -> None:
    assert allow(turn(), MODEL, lambda: 1 // 0, unknown) == Allowance(None)


@pytest.mark.parametrize("wanted", [None, 500])
def test_without_caps_an_answer_may_be_as_long_as_the_agent_says(wanted: int | None) -> None:
    assert allowed(turn(max_output_tokens=wanted)) == Allowance(wanted)


def test_a_call_that_fits_with_its_longest_answer_is_left_as_it_is() -> None:
    assert allowed(turn(max_tokens_total=REQUEST + USUAL_OUTPUT_TOKENS)) == Allowance(None)
    assert allowed(turn(max_tokens_total=REQUEST + 500, max_output_tokens=500)) == Allowance(500)


def test_an_answer_of_no_stated_length_is_made_to_fit_into_what_is_left() -> None:
    found = allowed(turn(max_tokens_total=REQUEST + USUAL_OUTPUT_TOKENS - 1))

    assert found.max_output_tokens == USUAL_OUTPUT_TOKENS - 1
    assert found.cut is not None
    assert found.cut.exit_reason is ExitReason.TOKEN_CAP


@pytest.mark.parametrize(
    ("left", "settings"), [(LEAST_OUTPUT_TOKENS - 1, {}), (499, {"max_output_tokens": 500})], ids=["unset", "set"]
)
def test_a_call_that_does_not_fit_is_refused_with_what_is_left(left: int, settings: dict[str, int]) -> None:
    cap = REQUEST + left

    ending = refused(turn(max_tokens_total=cap, **settings))

    assert ending.exit_reason is ExitReason.TOKEN_CAP
    assert f"{cap} of the cap of {cap} tokens are left" in (ending.message or "")


def test_tokens_that_were_used_or_may_have_been_are_gone() -> None:
    room = REQUEST + USUAL_OUTPUT_TOKENS
    used = turn(max_tokens_total=room + 30, usage=Usage(5, 5, 5, 5), spending=Spending(estimated_tokens=10))

    assert allowed(used) == Allowance(None)
    assert allowed(replace(used, max_tokens_total=room + 29)).max_output_tokens == USUAL_OUTPUT_TOKENS - 1


def test_a_call_is_allowed_what_its_money_buys_its_request_at_the_dearest_kind_of_input() -> None:
    # The request may cost 0.002, so 0.03 dollars are left for the answer.
    found = allowed(of_money("0.032"), dollar_a_million)

    assert found.max_output_tokens == 3_000
    assert found.cut is not None
    assert found.cut.exit_reason is ExitReason.COST_CAP


def test_a_call_that_costs_more_than_is_left_is_refused_with_the_amounts() -> None:
    spent = Spending(cost_usd=Decimal("0.5"), estimated_cost_usd=Decimal("0.49"))

    ending = refused(of_money("1", spending=spent), dollar_a_million)

    assert ending.exit_reason is ExitReason.COST_CAP
    assert ending.message == (
        "The next call may cost $0.012, and $0.01 of the cap of $1.00 are left: resume with more money."
    )


def test_money_for_exactly_one_more_call_is_enough() -> None:
    t = of_money("0.022", max_output_tokens=2_000)

    assert allowed(t, dollar_a_million) == Allowance(2_000)
    assert refused(replace(t, max_cost_usd=Decimal("0.0219999")), dollar_a_million).exit_reason is ExitReason.COST_CAP


def test_of_two_caps_the_nearer_one_counts() -> None:
    both = turn(max_tokens_total=REQUEST + 5_000, max_cost_usd=Decimal("0.032"))

    assert allowed(both, dollar_a_million).max_output_tokens == 3_000
    assert allowed(replace(both, max_tokens_total=REQUEST + 2_000), dollar_a_million).max_output_tokens == 2_000
    assert refused(replace(both, max_tokens_total=1), dollar_a_million).exit_reason is ExitReason.TOKEN_CAP


def test_without_a_price_money_cannot_be_capped() -> None:
    with pytest.raises(ConfigError, match=r'no price of scripted:large is known here: set it as \[prices."large"\]'):
        allow(of_money("1"), MODEL, lambda: REQUEST, unknown)


def test_what_is_free_is_never_refused_for_money() -> None:
    assert allowed(of_money("0.000001"), free) == Allowance(None)


def test_attempts_that_nobody_saw_the_end_of_count_before_anybody_has_booked_them() -> None:
    lost = turn(max_tokens_total=10_000, spending=Spending(unknown_attempts=3, lost_attempts=3))

    assert allowed(lost).max_output_tokens == 9_000 - 3 * 2_000
    assert refused(replace(lost, max_tokens_total=7_999)).exit_reason is ExitReason.TOKEN_CAP


def test_a_short_window_leaves_no_room_for_a_long_answer() -> None:
    t = turn(max_tokens_total=REQUEST + 3_000, context_window=4_000)

    assert allowed(t) == Allowance(None)


def test_a_turn_has_spent_all_when_what_is_known_and_what_is_estimated_reach_the_cap() -> None:
    tokens = turn(max_tokens_total=10, usage=Usage(5), spending=Spending(estimated_tokens=4))
    money = of_money("1", spending=Spending(cost_usd=Decimal("0.5"), estimated_cost_usd=Decimal("0.4999")))
    assert (spent_up(tokens), spent_up(money), spent_up(turn())) == (None, None, None)

    ended = [spent_up(replace(tokens, usage=Usage(6))), spent_up(replace(money, max_cost_usd=Decimal("0.9999")))]

    assert [e and e.exit_reason for e in ended] == [ExitReason.TOKEN_CAP, ExitReason.COST_CAP]


def test_an_answer_that_later_words_have_no_room_for_is_still_the_output() -> None:
    answered = [turns.asked(), turns.said("In feet: 3.")]
    steered = turns.message(Role.USER, Text("in metres"), origin=Origin.STEER, seq=3)
    t = replace(turn(max_tokens_total=10), messages=(*answered, steered))

    ended = spent_up(replace(t, usage=Usage(10)))

    assert (refused(t).output_text, ended and ended.output_text) == ("In feet: 3.", "In feet: 3.")
    asking = replace(t, messages=(turns.asked(), turns.said("I will look.", "c1")))
    assert refused(asking).output_text == ""


# -- after it ----------------------------------------------------------------------------------------------------------


def attempt(error: str | None = None, usage: Usage | None = None, **changes: Any) -> Outcome:
    call = ModelCall("scripted", "large-2026-01-01", 1, 0.1, error, usage, asked="large")
    return Outcome(Counters(), model_call=replace(call, **changes))


def book(t: Turn, outcome: Outcome, prices: Prices = dollar_a_million) -> Outcome:
    return booked(t, outcome, MODEL, lambda: REQUEST, prices)


def test_an_attempt_that_was_told_of_is_priced_whether_it_failed_or_not() -> None:
    for error in (None, "empty"):
        found = book(turn(), attempt(error, Usage(5, 5)))

        assert found.spending == Spending(cost_usd=Decimal("0.000055"))


def test_watchers_are_told_what_an_answer_costs_where_that_is_known() -> None:
    answered = replace(attempt(usage=Usage(5)), events=(Event("model.answered", {"iteration": 1}), Event("turn.ended")))

    assert book(turn(), answered).events == (
        Event("model.answered", {"iteration": 1, "cost_usd": 0.000005}),
        Event("turn.ended"),
    )
    assert book(turn(), answered, unknown).events == answered.events


def test_the_name_that_was_asked_for_has_the_first_word_on_the_price() -> None:
    def known(name: str) -> Prices:
        return lambda provider, model, usage: dollar_a_million(provider, model, usage) if model == name else None

    for name in ("large", "large-2026-01-01"):
        assert book(turn(), attempt(usage=Usage(5)), known(name)).spending.cost_usd == Decimal("0.000005")
    assert book(turn(), attempt(usage=Usage(5)), known("small")).spending == Spending(unpriced_attempts=1)


def test_an_attempt_that_nobody_told_the_usage_of_is_estimated() -> None:
    found = book(turn(), attempt("timeout"))

    cost = Decimal(REQUEST + 10 * LEAST_OUTPUT_TOKENS) / 1_000_000
    assert found.spending == Spending(unknown_attempts=1, estimated_tokens=2_000, estimated_cost_usd=cost)
    assert book(turn(), attempt("timeout"), unknown).spending == Spending(unknown_attempts=1, estimated_tokens=2_000)


def test_an_estimate_takes_an_answer_to_be_as_long_as_those_of_the_turn() -> None:
    wordy = turn(usage=Usage(0, 9_000), counters=Counters(iterations_used=3))

    assert book(wordy, attempt("timeout")).spending.estimated_tokens == REQUEST + 3_000
    brief = replace(wordy, agent=replace(wordy.agent, max_output_tokens=200))
    assert book(brief, attempt("timeout")).spending.estimated_tokens == REQUEST + 200


def test_an_attempt_for_which_nothing_can_have_been_bought_is_not_estimated() -> None:
    assert book(turn(), attempt("connect", may_be_billed=False)).spending == Spending()


@pytest.mark.parametrize(
    ("error", "billed"),
    [
        (ModelError(ErrorClass.TIMEOUT, ""), True),
        (ModelError(ErrorClass.MALFORMED_STREAM, "", status=200), True),
        (ModelError(ErrorClass.OVERLOADED, "", status=200), True),
        (ModelError(ErrorClass.OVERLOADED, "", status=529), False),
        (ModelError(ErrorClass.RATE_LIMIT, "", status=429), False),
        (ModelError(ErrorClass.SERVER_ERROR, "", status=500), False),
        (ModelError(ErrorClass.TIMEOUT, "", status=504), True),
        (ModelError(ErrorClass.CONNECT, "", was_sent=False), False),
        (ModelError(ErrorClass.CONNECT, ""), True),
        (ModelError(ErrorClass.UNKNOWN, ""), True),
        (ModelError(ErrorClass.SERVER_ERROR, "", status=500, usage=Usage(1)), True),
    ],
    ids=str,
)
def test_what_was_never_sent_or_was_refused_with_a_status_cannot_have_been_billed(
    error: ModelError, billed: bool
) -> None:
    assert error.may_be_billed is billed


def test_lost_attempts_are_booked_with_whatever_comes_next() -> None:
    t = turn(spending=Spending(unknown_attempts=2, lost_attempts=2))
    each = Estimate(2_000, Decimal("0.011"))

    assert book(t, Outcome(Counters())) == Outcome(Counters(), lost=Lost(2, each))
    assert book(turn(), Outcome(Counters())) == Outcome(Counters())


def test_a_lost_attempt_may_have_been_one_at_a_reference_and_the_dearest_counts() -> None:
    def price_of(provider: str, _model: str, usage: Usage) -> Decimal | None:
        each = {"scripted": Decimal(1), "dear": Decimal(5)}.get(provider)
        return None if each is None else each * usage.total

    t = turn(references=("dear:m", "unknown:m"), spending=Spending(unknown_attempts=1, lost_attempts=1))

    lost = booked(t, Outcome(Counters()), "scripted:large", lambda: 1_000, price_of).lost

    assert lost is not None
    assert lost.estimate.cost_usd == 5 * lost.estimate.tokens


# -- cut at a cap ------------------------------------------------------------------------------------------------------

CUT = Allowance(50, Ending(ExitReason.COST_CAP, message="The answer did not fit."))
TOLD = Event("turn.ended", {"status": "incomplete", "exit_reason": "cost_cap"})


def test_an_answer_cut_at_a_cap_ends_the_turn_by_that_name_and_is_kept() -> None:
    cut = parts.part(turns.message(Role.ASSISTANT, Text("me a ti")), parts.Why.LENGTH)
    goes_on = turns.message(Role.USER, Text("Go on."), origin=Origin.NOTICE)
    answered = replace(attempt(usage=Usage(1)), messages=(cut, goes_on), events=(Event("model.answered"),))
    before = parts.part(turns.message(Role.ASSISTANT, Text("Once upon a ti")), parts.Why.LENGTH)

    found = CUT.applied_to(answered, replace(turn(), messages=(before, goes_on)))

    assert found.ending == Ending(ExitReason.COST_CAP, "Once upon a time a ti", "The answer did not fit.")
    assert found.messages == (cut,)
    assert found.events == (Event("model.answered"), TOLD)


@pytest.mark.parametrize("error", [ErrorClass.TRUNCATED, ErrorClass.FORMAT_ERROR])
def test_an_attempt_that_failed_for_the_room_it_had_ends_the_turn(error: ErrorClass) -> None:
    found = CUT.applied_to(replace(attempt(error), events=(Event("model.failed"),)), turn())

    assert (found.ending, found.events) == (CUT.cut, (Event("model.failed"), TOLD))


@pytest.mark.parametrize(
    "outcome",
    [
        attempt(usage=Usage(1)),
        attempt(ErrorClass.TIMEOUT),
        Outcome(Counters()),
        replace(attempt(usage=Usage(1)), ending=Ending(ExitReason.BUDGET_EXHAUSTED)),
    ],
    ids=["answered", "failed", "nothing asked", "ended otherwise"],
)
def test_any_other_outcome_stays_as_it_is(outcome: Outcome) -> None:
    assert CUT.applied_to(outcome, turn()) is outcome
    truncated = attempt(ErrorClass.TRUNCATED)
    assert Allowance(50).applied_to(truncated, turn()) is truncated


# -- the promise -------------------------------------------------------------------------------------------------------

shares = st.floats(0, 1)
whole_turns = st.lists(st.tuples(st.integers(1, 40_000), shares, shares, st.sampled_from(["told", "untold", "lost"])))


@given(
    whole_turns,
    st.none() | st.integers(1, 400_000),
    st.none() | st.decimals("0.0001", 2, places=4),
    st.none() | st.integers(1, 20_000),
)
def test_whatever_answers_come_no_turn_passes_its_caps(
    calls: list[tuple[int, float, float, str]], tokens: int | None, money: Decimal | None, longest: int | None
) -> None:
    """As long as a request is no larger than it was taken to be, and an answer no longer than it was allowed to be."""
    t = turn(max_tokens_total=tokens, max_cost_usd=money, max_output_tokens=longest)
    for request, of_request, of_answer, how in calls:
        found = allow(t, MODEL, lambda size=request: size, dollar_a_million)
        if isinstance(found, Ending):
            break
        output = int((found.max_output_tokens or USUAL_OUTPUT_TOKENS) * of_answer)
        written = int(request * of_request)
        used = Usage(request - written, output, cache_write_tokens=written) if how == "told" else None
        outcome = attempt(usage=used) if how != "lost" else Outcome(Counters())
        was_lost = replace(t, spending=t.spending + Spending(unknown_attempts=1, lost_attempts=1))
        t = after(was_lost if how == "lost" else t, outcome, lambda size=request: size)
    if tokens is not None:
        assert t.usage.total <= tokens
    if money is not None:
        assert (t.spending.cost_usd or 0) <= money


def after(t: Turn, outcome: Outcome, size: Callable[[], int]) -> Turn:
    made = booked(t, outcome, MODEL, size, dollar_a_million)
    return t.after(made, News(t.position + 1, t.last_seq, 0, False, False, False))


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0", "$0.00"), ("5", "$5.00"), ("0.1", "$0.10"), ("0.012", "$0.012"), ("1234.5", "$1234.50")],
)
def test_an_amount_is_shown_in_cents_and_in_more_digits_only_where_there_are_any(amount: str, shown: str) -> None:
    assert dollars(Decimal(amount)) == shown
