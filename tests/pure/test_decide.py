"""What happens next: every rule, and which of two comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest

from orchestration.decide import MAX_INVALID_ITERATIONS, MAX_UNFIT_WORKERS, UNFIT_WORKER, decide
from orchestration.errors import ErrorClass
from orchestration.remedies import wait_s
from orchestration.steps import (
    Backoff,
    CallModel,
    End,
    FallBack,
    FetchAnswer,
    GatherDrafts,
    GiveUpWorker,
    HandBack,
    RunTools,
    Signals,
    StartDrafts,
    StartTools,
    Step,
    TakeInbox,
)
from persistence.records.agent import Grace
from persistence.records.message import CallStatus, Effect, Origin, Role, Text
from persistence.records.outcome import Counters
from persistence.records.pending import Pending
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.pure.turns import TOKEN, TURN, acting, asked, call, message, said, turn

CALM = Signals()
MODEL = "scripted:large"
OPEN, STARTED, SUCCEEDED = CallStatus.OPEN, CallStatus.STARTED, CallStatus.SUCCEEDED


def ends_as(reason: ExitReason) -> Callable[[Step], bool]:
    return lambda step: isinstance(step, End) and step.ending.exit_reason is reason


def with_counters(t: Turn, **changes: Any) -> Turn:
    return replace(t, counters=replace(t.counters, **changes))


@dataclass(frozen=True)
class Rule:
    """A condition, put on a turn, and what is to be done when it is the first that holds."""

    name: str
    holds: Callable[[Turn], Turn]
    means: Callable[[Step], bool]
    signals: Signals = CALM

    def __str__(self) -> str:
        return self.name


def _acting(t: Turn) -> Turn:
    other = acting(call("a"))
    return replace(t, messages=other.messages, calls=other.calls)


PENDING = Pending("scripted", "large", "resp_1", 1)
INVALID = {"invalid_iterations": MAX_INVALID_ITERATIONS}
# In the order in which they count.
RULES = [
    Rule("interrupted", lambda t: replace(t, is_interrupted=True), ends_as(ExitReason.INTERRUPTED_BY_USER)),
    Rule("crashes", lambda t: with_counters(t, crash_streak=3), ends_as(ExitReason.WORKER_LOST)),
    Rule("deadline", lambda t: replace(t, is_past_deadline=True), ends_as(ExitReason.DEADLINE)),
    Rule("invalid calls", lambda t: with_counters(t, remedies=INVALID), ends_as(ExitReason.INVALID_TOOL_CALL)),
    Rule("tokens", lambda t: replace(t, max_tokens_total=5, usage=Usage(5)), ends_as(ExitReason.TOKEN_CAP)),
    Rule("leave", lambda t: t, lambda s: s == HandBack(), Signals(must_hand_back=True)),
    Rule("slice", lambda t: replace(t, is_slice_over=True), lambda s: s == HandBack()),
    Rule("unfit", lambda t: with_counters(t, last_error=UNFIT_WORKER), lambda s: isinstance(s, GiveUpWorker)),
    Rule("pending", lambda t: with_counters(t, pending=PENDING), lambda s: s == FetchAnswer()),
    Rule("calls", _acting, lambda s: s == RunTools(("a",))),
    Rule("news", lambda t: replace(t, inbox_n=1), lambda s: s == TakeInbox()),
    Rule("error", lambda t: with_counters(t, last_error="timeout", attempts=1), lambda s: isinstance(s, Backoff)),
    Rule("budget", lambda t: t, lambda s: s == CallModel(MODEL)),
]
# Open calls are answered before these are looked at; a worker that is unfit and a failed call are the same counter.
EXCLUSIVE = [{"invalid calls", "calls"}, {"tokens", "calls"}, {"unfit", "error"}]
# What is bought already is fetched before they are looked at.
EXCLUSIVE += [{"invalid calls", "pending"}, {"tokens", "pending"}]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_each_rule_alone(rule: Rule) -> None:
    assert rule.means(decide(rule.holds(turn()), rule.signals))


PAIRS = [(a, b) for a, b in combinations(RULES, 2) if {a.name, b.name} not in EXCLUSIVE]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda r: str(r))
def test_of_two_rules_the_first_counts(first: Rule, second: Rule) -> None:
    both = first.holds(second.holds(turn()))
    signals = Signals(must_hand_back=first.signals.must_hand_back or second.signals.must_hand_back)

    assert first.means(decide(both, signals))


@pytest.mark.parametrize(
    "rule", [r for r in RULES if r.name not in ("calls", "unfit", "error", "news", "pending")], ids=str
)
def test_a_stored_final_answer_wins_over_everything(rule: Rule) -> None:
    answered = replace(rule.holds(turn()), messages=(asked(), said("Done.")), inbox_n=0)

    step = decide(answered, rule.signals)

    assert isinstance(step, End)
    assert (step.ending.exit_reason, step.ending.output_text) == (ExitReason.FINAL_ANSWER, "Done.")


def test_open_calls_are_answered_before_the_caps_are_looked_at() -> None:
    t = acting(call("a"), max_tokens_total=5, usage=Usage(5), counters=Counters(remedies=INVALID))

    assert decide(t, CALM) == RunTools(("a",))


def test_an_answer_that_is_bought_is_fetched_before_the_caps_are_looked_at() -> None:
    counters = Counters(remedies=INVALID, pending=PENDING)

    assert decide(turn(max_tokens_total=5, usage=Usage(5), counters=counters), CALM) == FetchAnswer()


def test_drafts_on_their_way_are_kept_before_anything_else() -> None:
    for rule in RULES:
        assert decide(rule.holds(turn()), replace(rule.signals, awaits_drafts=True)) == GatherDrafts()


def test_references_are_asked_before_the_model_and_not_for_the_last_call() -> None:
    t = turn(references=("scripted:a", "scripted:b"))

    assert decide(t, CALM) == StartDrafts()
    assert decide(with_counters(t, remedies={"drafts_for": 1, "drafts_open": 2}), CALM) == GatherDrafts()
    assert decide(with_counters(t, remedies={"drafts_for": 1}), CALM) == CallModel(MODEL)
    last = with_counters(t, iterations_used=10, grace_used=True)
    assert decide(last, CALM) == CallModel(MODEL, is_grace=True)


def test_a_signal_of_the_process_is_an_interrupt_too() -> None:
    assert ends_as(ExitReason.INTERRUPTED_BY_USER)(decide(turn(), Signals(is_interrupted=True)))


def test_news_prolong_a_turn_that_has_its_answer_while_it_may_go_on() -> None:
    answered = turn(asked(), said(), inbox_n=1)

    assert decide(answered, CALM) == TakeInbox()
    stopped = (
        (replace(answered, counters=Counters(iterations_used=10)), CALM),
        (replace(answered, is_interrupted=True), CALM),
        (answered, Signals(is_interrupted=True)),
        (replace(answered, is_past_deadline=True), CALM),
        (replace(answered, max_tokens_total=1, usage=Usage(1)), CALM),
    )
    for t, signals in stopped:
        assert ends_as(ExitReason.FINAL_ANSWER)(decide(t, signals))


def test_words_of_an_earlier_turn_are_no_final_answer() -> None:
    of_another = replace(said(), turn_id=asked().turn_id.__class__(int=99))

    assert decide(turn(of_another), CALM) == CallModel(MODEL)


def test_words_with_a_notice_after_them_are_no_final_answer() -> None:
    notice = message(Role.USER, Text("Go on."), origin=Origin.NOTICE)

    assert decide(turn(asked(), said(), notice), CALM) == CallModel(MODEL)


def test_a_slice_that_was_over_before_anything_was_done_is_not_handed_round() -> None:
    fresh = turn(is_slice_over=True, position=3, claimed_position=3)

    assert decide(fresh, CALM) == CallModel(MODEL)
    assert decide(replace(fresh, position=4), CALM) == HandBack()
    assert decide(fresh, Signals(must_hand_back=True)) == HandBack()


def test_a_turn_does_not_leave_between_its_start_mark_and_the_call() -> None:
    ours = acting(call("a", Effect.ONCE, STARTED, token=TOKEN))
    of_another = acting(call("a", Effect.ONCE, STARTED, token=TOKEN - 1))

    assert decide(ours, Signals(must_hand_back=True)) == RunTools(("a",))
    assert decide(of_another, Signals(must_hand_back=True)) == HandBack()


once, reads, repeatable = Effect.ONCE, Effect.READS, Effect.REPEATABLE


@pytest.mark.parametrize(
    ("calls", "step"),
    [
        ([call("a"), call("b")], RunTools(("a", "b"))),
        ([call("a", repeatable), call("b", repeatable)], RunTools(("a", "b"))),
        ([call("a", once)], StartTools(("a",))),
        ([call("a", once), call("b", once)], StartTools(("a",))),
        ([call("a", once, parallel=True), call("b", once, parallel=True)], StartTools(("a", "b"))),
        ([call("a", once, parallel=True), call("b"), call("c", once, parallel=True)], StartTools(("a", "c"))),
        ([call("a"), call("b", once)], RunTools(("a",), then_start=("b",))),
        ([call("a", once, STARTED, token=TOKEN)], RunTools(("a",))),
        ([call("a", once, STARTED, token=TOKEN), call("b", once)], RunTools(("a",), then_start=("b",))),
        ([call("a", once, SUCCEEDED), call("b", once, STARTED, token=TOKEN)], RunTools(("b",))),
        ([call("a", once, STARTED, token=TOKEN), call("b"), call("c")], RunTools(("a", "b", "c"))),
        ([call("a", once, STARTED, token=1)], RunTools((), ("a",))),
        ([call("a", once, STARTED, token=1), call("b")], RunTools(("b",), ("a",))),
        ([call("a", once, STARTED, token=1), call("b", once)], RunTools((), ("a",), ("b",))),
        ([call("a", status=CallStatus.FAILED, result="no")], RunTools((), ())),
        ([call("a", status=CallStatus.FAILED, result="no"), call("b", once)], StartTools(("b",))),
        ([call("a", token=1)], RunTools(("a",))),
    ],
)
def test_calls_run_in_order_and_no_once_call_before_its_start_mark_is_stored(calls: list[Any], step: Step) -> None:
    assert decide(acting(*calls), CALM) == step


def failed(error: ErrorClass, failures: int = 1, **changes: Any) -> Turn:
    counters = Counters(last_error=error.value, attempts=failures, retry_after_s=changes.pop("retry_after_s", None))
    return turn(counters=counters, **changes)


def test_a_failed_attempt_is_followed_by_a_pause_then_by_the_next() -> None:
    t = failed(ErrorClass.SERVER_ERROR)

    assert decide(t, CALM) == Backoff(wait_s(TURN, 1, base_s=1.0, retry_after_s=None))
    assert decide(t.rested(), CALM) == CallModel(MODEL)


def test_a_pause_that_is_too_long_to_sit_out_releases_the_worker() -> None:
    at_the_limit = failed(ErrorClass.RATE_LIMIT, retry_after_s=100.0, retry_in_place_s=200.0)

    step = decide(replace(at_the_limit, agent=replace(at_the_limit.agent, retry_in_place_s=30.0)), CALM)

    assert isinstance(decide(at_the_limit, CALM), Backoff)
    assert isinstance(step, GiveUpWorker)
    assert (step.waiting_for, 100.0 <= step.resume_in_s <= 110.0) == (WaitingFor.RETRY, True)


def test_attempts_end_where_the_settings_say() -> None:
    assert isinstance(decide(failed(ErrorClass.SERVER_ERROR, 2), CALM), Backoff)
    assert ends_as(ExitReason.PROVIDER_FAILED)(decide(failed(ErrorClass.SERVER_ERROR, 3), CALM))
    assert isinstance(decide(failed(ErrorClass.SERVER_ERROR, 3, attempts=4), CALM), Backoff)


def test_an_error_that_another_attempt_cannot_cure_ends_at_once() -> None:
    assert ends_as(ExitReason.PROVIDER_FAILED)(decide(failed(ErrorClass.AUTH), CALM))
    assert ends_as(ExitReason.CONTEXT_OVERFLOW)(decide(failed(ErrorClass.CONTEXT_OVERFLOW), CALM))


CHAIN = ("second:model", "third:model")


def test_where_a_model_cannot_help_the_next_of_its_chain_is_asked() -> None:
    t = failed(ErrorClass.AUTH, fallbacks=CHAIN)

    assert decide(t, CALM) == FallBack(1)
    assert decide(with_counters(t, model_index=1), CALM) == FallBack(2)
    assert ends_as(ExitReason.PROVIDER_FAILED)(decide(with_counters(t, model_index=2), CALM))
    assert decide(turn(fallbacks=CHAIN, counters=Counters(model_index=2)), CALM) == CallModel("third:model")


def test_a_model_has_its_attempts_before_the_next_is_asked() -> None:
    assert isinstance(decide(failed(ErrorClass.SERVER_ERROR, 2, fallbacks=CHAIN), CALM), Backoff)
    assert decide(failed(ErrorClass.SERVER_ERROR, 3, fallbacks=CHAIN), CALM) == FallBack(1)


def test_a_grace_call_that_cannot_be_had_ends_the_turn_as_out_of_budget() -> None:
    t = failed(ErrorClass.AUTH)

    step = decide(with_counters(t, grace_used=True, iterations_used=10), CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.BUDGET_EXHAUSTED
    assert "10 iterations" in step.ending.output_text


def test_other_workers_are_tried_ever_later_and_a_few_times_only() -> None:
    def unfit(tried: int) -> Step:
        return decide(turn(counters=Counters(last_error=UNFIT_WORKER, remedies={"unfit_workers": tried})), CALM)

    waits = [unfit(n) for n in range(1, MAX_UNFIT_WORKERS)]

    assert waits == [GiveUpWorker(WaitingFor.RETRY, 2.0**n) for n in range(1, MAX_UNFIT_WORKERS)]
    assert ends_as(ExitReason.CONFIG_ERROR)(unfit(MAX_UNFIT_WORKERS))


def test_what_no_worker_has_is_asked_of_the_next_model_of_the_chain_unless_an_answer_is_bought_there() -> None:
    counters = Counters(last_error=UNFIT_WORKER, remedies={"unfit_workers": MAX_UNFIT_WORKERS})
    t = turn(counters=counters, fallbacks=CHAIN)

    assert decide(t, CALM) == FallBack(1)
    assert ends_as(ExitReason.CONFIG_ERROR)(decide(with_counters(t, pending=PENDING), CALM))
    assert ends_as(ExitReason.CONFIG_ERROR)(decide(with_counters(t, model_index=2), CALM))


@pytest.mark.parametrize(
    ("grace", "granted", "answered", "step"),
    [
        (Grace.ANSWER, True, False, CallModel(MODEL, is_grace=True)),
        (Grace.TOOLS, True, False, CallModel(MODEL, is_grace=True)),
        (Grace.ANSWER, True, True, ExitReason.BUDGET_EXHAUSTED),
        (Grace.TOOLS, True, True, ExitReason.BUDGET_EXHAUSTED),
        (Grace.ANSWER, False, False, ExitReason.BUDGET_EXHAUSTED),
        (Grace.OFF, False, False, ExitReason.BUDGET_EXHAUSTED),
        (Grace.OFF, True, False, ExitReason.BUDGET_EXHAUSTED),
    ],
)
def test_a_spent_budget_allows_the_grace_call_that_was_granted_and_nothing_else(
    grace: Grace, granted: bool, answered: bool, step: Step | ExitReason
) -> None:
    remedies = {"grace_answered": 1} if answered else {}
    t = turn(counters=Counters(iterations_used=10, grace_used=granted, remedies=remedies), grace=grace)

    found = decide(t, CALM)

    assert ends_as(step)(found) if isinstance(step, ExitReason) else found == step


def test_the_output_of_a_spent_budget_is_the_grace_reply_and_never_an_older_note() -> None:
    counters = Counters(iterations_used=10, grace_used=True)
    note, results = said("Now step 5.", "a"), message(Role.TOOL)
    grace = message(Role.ASSISTANT, Text("The summary."))

    without = decide(turn(asked(), note, results, counters=replace(counters, grace_used=False)), CALM)
    with_it = decide(
        turn(asked(), note, results, grace, results, counters=replace(counters, remedies={"grace_answered": 1})), CALM
    )

    assert isinstance(without, End)
    assert isinstance(with_it, End)
    assert "10 iterations" in without.ending.output_text
    assert with_it.ending.output_text == "The summary."


def test_a_decision_changes_nothing_and_is_always_the_same() -> None:
    t = acting(call("a"), call("b", once))

    assert decide(t, CALM) == decide(replace(t), Signals())
