"""When a turn compresses, how often, in which pieces, and what becomes of it when it cannot."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import pytest

from orchestration import room
from orchestration.context_size import size_of
from orchestration.context_window import Why
from orchestration.decide import decide
from orchestration.errors import ErrorClass
from orchestration.room import Count, after_refusal, before_call, result_bytes, result_chars
from orchestration.steps import Backoff, CallModel, Compress, End, FallBack, GiveUpWorker, ShowLess, Signals, Step
from persistence.records.compression import SHOWN_CHARS, SHOWN_FROM, shown
from persistence.records.message import Call, CallStatus, Message, Result, Role, Text
from persistence.records.outcome import Counters, Outcome
from persistence.records.status import ExitReason
from persistence.records.turn import Turn
from tests.pure.histories import after, carrying, compressed, summarised
from tests.pure.turns import acting, call, message

MODEL = "scripted:large"
CALM = Signals()


def at_work(*, iterations: int = 10, chars: int = 4_000, **settings: object) -> Turn:
    """A turn in which every iteration added a little over `chars` / 4 tokens; the model is to be called next."""
    made: list[Message] = [message(Role.USER, Text("Do it."), seq=1)]
    for n in range(iterations):
        made.append(message(Role.ASSISTANT, Call(f"c{n}", "look", "{}"), seq=len(made) + 1))
        made.append(message(Role.TOOL, Result(f"c{n}", "x" * chars, CallStatus.SUCCEEDED), seq=len(made) + 1))
    return carrying(made, **settings)


def with_counts(t: Turn, **counts: int) -> Turn:
    return replace(t, counters=room.counted(t.counters, **counts))


def refused(t: Turn, error: ErrorClass = ErrorClass.CONTEXT_OVERFLOW) -> Turn:
    return replace(t, counters=replace(t.counters, attempts=1, last_error=error.value))


def the_compression(step: Step | Why | None) -> Compress:
    assert isinstance(step, Compress)
    return step


FULL = at_work(context_window=16_000)
ROOMY = at_work(context_window=128_000)
TIGHT = at_work(iterations=14, context_window=16_000)


def test_a_request_below_the_threshold_is_sent_as_it_is() -> None:
    assert before_call(ROOMY, MODEL) is None
    assert decide(ROOMY, CALM) == CallModel(MODEL)


def test_a_request_above_the_threshold_is_compressed_first() -> None:
    step = the_compression(decide(FULL, CALM))

    assert (step.model, step.from_seq, step.to_seq, step.target_seq) == (MODEL, 4, 19, 19)


def test_the_last_call_of_a_turn_is_given_room_too() -> None:
    spent = replace(FULL, counters=replace(FULL.counters, iterations_used=10, grace_used=True))

    assert isinstance(decide(spent, CALM), Compress)


def test_without_a_known_window_only_a_refusal_compresses() -> None:
    unknown = at_work(context_window=None)

    assert decide(unknown, CALM) == CallModel(MODEL)
    assert isinstance(decide(refused(unknown), CALM), Compress)


@pytest.mark.parametrize("error", [ErrorClass.CONTEXT_OVERFLOW, ErrorClass.PAYLOAD_TOO_LARGE])
def test_a_request_that_was_refused_as_too_large_is_compressed_whatever_the_window_is_said_to_be(
    error: ErrorClass,
) -> None:
    assert isinstance(decide(refused(ROOMY, error), CALM), Compress)


def test_another_error_compresses_nothing() -> None:
    assert isinstance(decide(refused(ROOMY, ErrorClass.SERVER_ERROR), CALM), Backoff)


def test_a_pause_that_was_sat_out_does_not_send_the_refused_request_again() -> None:
    rested = replace(refused(at_work(context_window=None)), has_rested=True)

    assert isinstance(decide(rested, CALM), Compress)


def test_the_agent_names_who_summarises() -> None:
    step = the_compression(decide(at_work(context_window=16_000, compress_model="other:small"), CALM))

    assert step.model == "other:small"


def test_a_fallback_summarises_its_own_requests() -> None:
    fallen = at_work(context_window=16_000, fallbacks=("other:large",))
    fallen = replace(fallen, counters=replace(fallen.counters, model_index=1))

    assert the_compression(decide(fallen, CALM)).model == "other:large"


def test_a_request_that_does_not_fit_gives_up_the_head_where_the_middle_is_not_enough() -> None:
    """A head of one large document: the middle alone would not make room."""
    large = message(Role.USER, Text("x" * 36_000), seq=1)
    t = at_work(iterations=6, context_window=16_000)
    t = replace(t, messages=(large, *t.messages[1:]))
    asked_again = message(Role.USER, Text("And now?"), seq=15)
    t = replace(t, messages=(*t.messages, message(Role.ASSISTANT, Text("Done."), seq=14), asked_again), last_seq=15)

    assert the_compression(before_call(t, MODEL)).from_seq == 1


def test_a_summary_that_would_hardly_pay_is_not_asked_for_while_there_is_room() -> None:
    """A tail that is large by itself: what is left in the middle is little."""
    t = at_work(iterations=3, chars=200, context_window=16_000)
    large = (
        message(Role.ASSISTANT, Call("big", "look", "{}"), seq=8),
        message(Role.TOOL, Result("big", "x" * 36_000, CallStatus.SUCCEEDED), seq=9),
    )
    t = replace(t, messages=(*t.messages, *large), last_seq=9)

    assert size_of(t).tokens > 8_000
    assert before_call(t, MODEL) is None


@pytest.mark.parametrize("settings", [{"context_window": 16_000}, {"context_window": None}])
def test_there_are_three_compressions_between_two_answers_at_most(settings: dict[str, int | None]) -> None:
    often = with_counts(at_work(chars=3_900, **settings), PASSES=3, SUMMARIES=3)

    assert decide(often, CALM) == CallModel(MODEL)
    step = decide(refused(often), CALM)
    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.CONTEXT_OVERFLOW
    assert "context cannot be reduced" in (step.ending.message or "")


def test_how_many_compressions_there_are_between_two_answers_is_the_agents() -> None:
    once = with_counts(at_work(context_window=16_000, compress_passes=2), PASSES=1, SUMMARIES=1)

    assert isinstance(decide(once, CALM), Compress)
    assert decide(with_counts(once, PASSES=2), CALM) == CallModel(MODEL)
    assert decide(at_work(context_window=16_000, compress_passes=0), CALM) == CallModel(MODEL)


def test_over_a_turn_each_answer_allows_one_compression_more() -> None:
    def used(summaries: int, iterations_used: int) -> Turn:
        counters = replace(FULL.counters, iterations_used=iterations_used)
        return with_counts(replace(FULL, counters=counters), SUMMARIES=summaries)

    assert isinstance(decide(used(8, 6), CALM), Compress)
    assert decide(used(9, 6), CALM) == CallModel(MODEL)


def test_a_context_that_cannot_be_reduced_ends_the_turn_and_says_why() -> None:
    step = decide(refused(carrying([message(Role.USER, Text("x" * 90_000), seq=1)])), CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.CONTEXT_OVERFLOW
    assert step.ending.message == (
        "The context cannot be reduced to what the model takes: all that is left is protected. "
        "The model's answer to it was context_overflow."
    )


def test_a_context_that_cannot_be_reduced_is_tried_on_a_fallback_before_the_turn_ends() -> None:
    alone = carrying([message(Role.USER, Text("x" * 90_000), seq=1)], fallbacks=("other:large",))

    assert decide(refused(alone), CALM) == FallBack(1)


def test_an_estimate_alone_ends_no_turn() -> None:
    alone = carrying([message(Role.USER, Text("x" * 900_000), seq=1)])

    assert decide(alone, CALM) == CallModel(MODEL)


def test_results_that_the_model_has_not_seen_are_shown_shorter_when_nothing_else_helps() -> None:
    large = at_work(iterations=1, chars=100_000, context_window=None)

    assert decide(refused(large), CALM) == ShowLess(3, 25_000)


def test_results_are_shown_ever_shorter_as_long_as_that_is_any_use() -> None:
    t = at_work(iterations=1, chars=100_000, context_window=None)
    lengths: list[int] = []
    while isinstance(step := decide(refused(t), CALM), ShowLess):
        t = after(t, Outcome(room.showing_less(refused(t).counters, step)))
        lengths.append(max(len(b.content) for m in t.messages for b in m.content if isinstance(b, Result)))

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.CONTEXT_OVERFLOW
    assert all(later < earlier / 3 for earlier, later in pairwise(lengths))
    assert 1_000 < lengths[-1] < 4_000


def test_what_was_shown_shorter_step_by_step_is_as_if_it_had_been_shown_so_at_once() -> None:
    whole = at_work(iterations=1, chars=100_000).messages
    twice = shown(shown(whole, {SHOWN_FROM: 3, SHOWN_CHARS: 25_000}), {SHOWN_FROM: 3, SHOWN_CHARS: 6_000})
    once = shown(whole, {SHOWN_FROM: 3, SHOWN_CHARS: 6_000})

    assert [m.content for m in twice] == [m.content for m in once]
    assert shown(once, {SHOWN_FROM: 3, SHOWN_CHARS: 6_000})[2] is once[2]


def test_without_a_summary_no_result_is_shortened_instead() -> None:
    large = given_up(at_work(iterations=1, chars=100_000, context_window=None))

    step = decide(refused(large), CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.COMPRESSION_FAILED


# Failed summaries


def failed(t: Turn, error: ErrorClass | None = ErrorClass.SERVER_ERROR, *, retry_after_s: float | None = None) -> Turn:
    counters = room.failed(t.counters, error, attempts=t.agent.attempts, retry_after_s=retry_after_s)
    return replace(t, counters=counters, has_rested=False)


def test_a_failed_summary_is_tried_again_after_a_pause() -> None:
    once = failed(FULL)

    assert isinstance(decide(once, CALM), Backoff)
    assert isinstance(decide(once.rested(), CALM), Compress)


def test_the_pauses_between_the_attempts_grow() -> None:
    pauses: list[float] = []
    t = FULL
    for _ in range(4):
        t = failed(t)
        step = decide(t, CALM)
        assert isinstance(step, Backoff)
        pauses.append(step.wait_s)

    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]


def test_a_long_pause_before_a_summary_frees_the_worker() -> None:
    told_to_wait = failed(FULL, ErrorClass.RATE_LIMIT, retry_after_s=120.0)

    step = decide(told_to_wait, CALM)

    assert isinstance(step, GiveUpWorker)
    assert step.resume_in_s >= 120
    claimed_again = replace(told_to_wait, counters=room.rested(told_to_wait.counters))
    assert isinstance(decide(claimed_again, CALM), Compress)


def test_a_summary_has_two_attempts_more_than_an_answer() -> None:
    t = FULL
    for _ in range(4):
        t = failed(t)
        assert Count.GIVEN_UP not in t.counters.remedies

    assert Count.GIVEN_UP in failed(t).counters.remedies


@pytest.mark.parametrize("error", [ErrorClass.AUTH, ErrorClass.REFUSAL, ErrorClass.MODEL_NOT_FOUND])
def test_what_no_further_attempt_can_mend_gives_the_summary_up_at_once(error: ErrorClass) -> None:
    assert Count.GIVEN_UP in failed(FULL, error).counters.remedies


def given_up(t: Turn) -> Turn:
    return failed(t, ErrorClass.AUTH)


def test_without_a_summary_the_turn_goes_on_while_its_request_fits() -> None:
    assert decide(given_up(FULL), CALM) == CallModel(MODEL)


@pytest.mark.parametrize(
    "t",
    [given_up(at_work(iterations=20, context_window=16_000)), refused(given_up(FULL))],
    ids=["too large for the window", "refused"],
)
def test_without_a_summary_the_turn_ends_by_name_once_its_request_does_not_fit(t: Turn) -> None:
    step = decide(t, CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.COMPRESSION_FAILED
    assert "summary" in (step.ending.message or "")


def test_a_full_grace_call_ends_as_the_budget_does() -> None:
    spent = refused(given_up(FULL))
    spent = replace(spent, counters=replace(spent.counters, iterations_used=10, grace_used=True))

    step = decide(spent, CALM)

    assert isinstance(step, End)
    assert step.ending.exit_reason is ExitReason.BUDGET_EXHAUSTED


def answered(t: Turn, iterations_used: int) -> Turn:
    """The counters after an answer."""
    remedies = MappingProxyType(room.answered(t.counters.remedies))
    return replace(t, counters=replace(t.counters, iterations_used=iterations_used, remedies=remedies))


def test_after_a_summary_was_given_up_the_next_is_tried_ever_later() -> None:
    once = given_up(FULL)
    twice = given_up(answered(once, 2))

    assert decide(answered(once, 1), CALM) == CallModel(MODEL)
    assert isinstance(decide(answered(once, 2), CALM), Compress)
    assert decide(answered(twice, 5), CALM) == CallModel(MODEL)
    assert isinstance(decide(answered(twice, 6), CALM), Compress)


def test_a_request_that_does_not_fit_any_more_does_not_wait_for_its_time() -> None:
    assert isinstance(decide(answered(given_up(TIGHT), 1), CALM), Compress)


def test_an_answer_lets_everything_begin_anew_that_is_counted_between_two_answers() -> None:
    names = [c.name for c in Count]
    counters = room.counted(Counters(), **dict.fromkeys(names, 7))

    assert set(room.answered(counters.remedies)) == {Count.SUMMARIES, Count.FAILURES, Count.NOT_BEFORE}


# Summaries in pieces


def small_window(**settings: object) -> Turn:
    return at_work(iterations=30, context_window=50_000, compress_model="other:small", **settings)


def test_a_small_window_of_the_model_that_summarises_is_respected() -> None:
    step = the_compression(decide(small_window(compress_window=8_000), CALM))
    whole = the_compression(decide(small_window(compress_window=100_000), CALM))

    assert whole.to_seq == whole.target_seq == step.target_seq
    assert step.to_seq < step.target_seq
    assert step.room < 6_000


def test_a_pass_goes_on_until_it_has_all_its_pieces_and_counts_once() -> None:
    t = small_window(compress_window=8_000)
    first = the_compression(decide(t, CALM))
    ends = [first.to_seq]
    while not isinstance(decide(t, CALM), CallModel):
        step = the_compression(decide(t, CALM))
        assert step.from_seq == first.from_seq
        assert step.target_seq == first.target_seq
        t = after(t, summarised(t, step, "s" * 400))
        ends.append(step.to_seq)

    assert len(ends) > 3
    assert ends[-1] == first.target_seq
    assert dict(t.counters.remedies) == {Count.PASSES: 1, Count.SUMMARIES: 1}


def test_one_group_is_the_least_of_a_piece_however_little_room_there_is() -> None:
    t = at_work(iterations=12, chars=40_000, context_window=100_000, compress_window=2_000)

    step = the_compression(decide(t, CALM))

    assert (step.from_seq, step.to_seq) == (4, 5)


def test_a_request_for_a_summary_that_is_too_large_itself_is_halved() -> None:
    whole = the_compression(decide(FULL, CALM))

    halved = the_compression(decide(failed(FULL, ErrorClass.CONTEXT_OVERFLOW).rested(), CALM))

    assert halved.room == whole.room // 2


def test_a_piece_that_fails_for_good_leaves_the_pass_as_far_as_it_came() -> None:
    t = small_window(compress_window=8_000)
    step = the_compression(decide(t, CALM))
    t = after(t, summarised(t, step, "s" * 400))
    assert isinstance(decide(t, CALM), Compress)

    assert decide(given_up(t), CALM) == CallModel(MODEL)


def test_a_last_resort_never_shows_again_what_was_hidden() -> None:
    """Its first piece is the head; what was compressed before stays behind it."""
    t = compressed(at_work(iterations=14, chars=9_000, context_window=100_000), 4, 19)
    hard = with_counts(refused(replace(t, agent=replace(t.agent, compress_window=2_000))), PASSES=1, SUMMARIES=1)

    step = the_compression(after_refusal(hard, MODEL))

    assert step.from_seq == 1
    assert step.to_seq >= 19


# Results


def test_the_results_of_one_answer_fit_half_of_the_window_together() -> None:
    one = acting(call("c1"), context_window=32_000)
    three = acting(call("c1"), call("c2"), call("c3"), context_window=32_000)

    assert result_chars(one) == 24_000 // 2 * 4
    assert result_chars(three) == 24_000 // 2 // 3 * 4


def test_a_result_is_no_longer_than_the_agent_says_and_never_nothing() -> None:
    many = [call(f"c{n}") for n in range(200)]

    assert result_chars(acting(call("c1"), context_window=1_000_000)) == 100_000
    assert result_chars(acting(call("c1"), context_window=None, result_chars=5_000)) == 5_000
    assert result_chars(acting(*many, context_window=8_000)) == 1_000


def test_what_has_several_bytes_a_character_gets_no_more_room_for_it() -> None:
    assert result_bytes(acting(call("c1"), context_window=32_000)) == 48_000
    assert result_bytes(acting(call("c1"), context_window=1_000_000)) == 983_616 // 2 * 4
    assert result_bytes(acting(call("c1"), context_window=None)) is None
