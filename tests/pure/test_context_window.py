"""What may be compressed: a plan for every history, what it never touches, and that it always makes room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.context_size import rough_block, size_of
from orchestration.context_window import HEAD, Limits, Plan, Why, carried, output_room, plan
from persistence.records.agent import AgentSettings
from persistence.records.message import Call, CallStatus, Message, Origin, Result, Role, Text
from persistence.records.turn import Turn
from tests.pure.histories import after, carrying, compressed, followed, histories, step_of, summarised
from tests.pure.turns import message, said, turn
from tests.support.standing import wrong_with_request

windows = st.sampled_from([2_000, 8_000, 32_000, 200_000])
counts = st.none() | st.integers(10, 50_000)
last_resorts = st.booleans()


def planned(t: Turn, *, is_last_resort: bool = False) -> Plan | Why:
    limits = Limits.of(t.agent)
    assert limits is not None
    return plan(t, limits=limits, size=size_of(t), is_last_resort=is_last_resort)


def longest_summary(found: Plan) -> str:
    return "word" * found.summary_tokens


def carried_out(t: Turn, found: Plan) -> Turn:
    """The turn after the plan, with a summary as long as it may be."""
    step = step_of(found.from_seq, found.to_seq, summary_tokens=found.summary_tokens)
    return after(t, summarised(t, step, longest_summary(found)))


def newest_request(messages: tuple[Message, ...]) -> Message:
    return next(m for m in reversed(messages) if m.role is Role.USER and m.origin is Origin.USER)


@given(histories(), windows, counts, last_resorts)
def test_a_plan_parts_no_call_from_its_results(
    history: tuple[Message, ...], window: int, counted: int | None, is_last_resort: bool
) -> None:
    t = carrying(history, context_window=window, counted=counted)

    found = planned(t, is_last_resort=is_last_resort)

    if isinstance(found, Plan):
        assert wrong_with_request(carried_out(t, found).messages) == []


@given(histories(), windows, counts, last_resorts)
def test_a_plan_never_touches_what_is_protected(
    history: tuple[Message, ...], window: int, counted: int | None, is_last_resort: bool
) -> None:
    t = carrying(history, context_window=window, counted=counted)

    found = planned(t, is_last_resort=is_last_resort)

    if isinstance(found, Plan):
        newest_answer = max((m.seq for m in history if m.role is Role.ASSISTANT), default=0)
        if is_last_resort:
            assert found.to_seq < max(newest_answer, newest_request(history).seq)
        else:
            assert found.to_seq < newest_answer
            assert found.from_seq > HEAD
        kept = carried_out(t, found).messages
        assert [m for m in kept if m in history] == [m for m in history if not found.from_seq <= m.seq <= found.to_seq]


@given(histories(), windows, counts, last_resorts)
def test_the_newest_request_is_always_seen_word_for_word(
    history: tuple[Message, ...], window: int, counted: int | None, is_last_resort: bool
) -> None:
    t = carrying(history, context_window=window, counted=counted)

    found = planned(t, is_last_resort=is_last_resort)

    if isinstance(found, Plan):
        seen = [block for m in carried_out(t, found).messages if m.role is Role.USER for block in m.content]
        assert all(block in seen for block in newest_request(history).content)


@given(histories(), windows, counts, last_resorts)
def test_a_plan_always_makes_the_request_smaller_by_what_it_promises(
    history: tuple[Message, ...], window: int, counted: int | None, is_last_resort: bool
) -> None:
    t = carrying(history, context_window=window, counted=counted)

    found = planned(t, is_last_resort=is_last_resort)

    if isinstance(found, Plan):
        assert found.gain > 0
        assert size_of(carried_out(t, found)).tokens <= size_of(t).tokens - found.gain


@given(histories(), histories(most=6), windows, last_resorts)
def test_a_later_compression_covers_all_that_an_earlier_one_did(
    history: tuple[Message, ...], more: tuple[Message, ...], window: int, is_last_resort: bool
) -> None:
    t = carrying(history, context_window=window)
    first = planned(t)
    if not isinstance(first, Plan):
        return
    t = followed(carried_out(t, first), *more)

    second = planned(t, is_last_resort=is_last_resort)

    if isinstance(second, Plan):
        assert second.from_seq <= first.from_seq
        assert second.to_seq > first.to_seq
        kept = carried_out(t, second).messages
        assert wrong_with_request(kept) == []
        assert sum(m.origin is Origin.NOTICE for m in kept) == 1


@given(histories(), windows)
def test_a_history_that_was_compressed_is_not_compressed_again_for_nothing(
    history: tuple[Message, ...], window: int
) -> None:
    t = carrying(history, context_window=window)
    found = planned(t, is_last_resort=True)

    if isinstance(found, Plan):
        assert planned(carried_out(t, found), is_last_resort=True) is Why.NOTHING_LEFT


def long_turn(*, iterations: int = 10, chars: int = 4_000) -> tuple[Message, ...]:
    """A request, then iterations of one call with a result of so many characters."""
    made = [message(Role.USER, Text("Do it."), seq=1)]
    for n in range(iterations):
        made.append(message(Role.ASSISTANT, Call(f"c{n}", "look", "{}"), seq=len(made) + 1))
        made.append(message(Role.TOOL, Result(f"c{n}", "x" * chars, CallStatus.SUCCEEDED), seq=len(made) + 1))
    return tuple(made)


def test_the_middle_lies_between_the_head_and_a_tail_of_a_fifth_of_the_threshold() -> None:
    t = carrying(long_turn(iterations=20), context_window=32_000)

    found = planned(t)

    assert isinstance(found, Plan)
    assert found.from_seq == 4
    tail = [m for m in t.messages if m.seq > found.to_seq]
    # A fifth of 16,000 tokens holds three groups of a little over 1,000.
    assert [m.seq for m in tail] == [36, 37, 38, 39, 40, 41]


def test_results_that_the_model_has_not_seen_stay_however_large_they_are() -> None:
    t = carrying(long_turn(iterations=4, chars=40_000), context_window=8_000)

    found = planned(t, is_last_resort=True)

    assert isinstance(found, Plan)
    assert found.to_seq == 7


@pytest.mark.parametrize("is_last_resort", [False, True])
def test_the_first_request_of_a_session_is_nothing_to_compress(is_last_resort: bool) -> None:
    alone = carrying([message(Role.USER, Text("x" * 100_000), seq=1)])

    assert isinstance(planned(alone, is_last_resort=is_last_resort), Why)


def test_what_earlier_turns_ended_on_unseen_is_touched_in_the_last_resort_alone() -> None:
    too_large = message(Role.USER, Text("x" * 100_000), seq=1)
    t = carrying([too_large, message(Role.USER, Text("Never mind. Hello?"), seq=2)])

    assert planned(t) is Why.NOTHING_SEEN
    found = planned(t, is_last_resort=True)
    assert isinstance(found, Plan)
    assert (found.from_seq, found.to_seq) == (1, 1)


def test_of_a_history_that_is_head_and_tail_there_is_nothing_to_compress() -> None:
    assert planned(carrying(long_turn(iterations=2))) is Why.NOTHING_LEFT


def test_a_middle_that_is_shorter_than_any_summary_stays() -> None:
    assert planned(carrying(long_turn(iterations=14, chars=1), context_window=2_000)) is Why.NO_GAIN


def test_a_request_in_the_middle_is_carried_along_with_what_was_added_to_it() -> None:
    first, *rest = long_turn(iterations=12)
    steer = message(Role.USER, Text("In metres."), origin=Origin.STEER)
    history = [first, *rest[:4], message(Role.ASSISTANT, Text("Done.")), message(Role.USER, Text("Now this.")), steer]
    numbered = carrying(list(long_turn(iterations=1)))  # numbers are given by `followed`
    t = followed(numbered, *history[1:], *rest[4:])

    kept = compressed(t, 4, t.messages[-3].seq)

    assert kept.compression is not None
    assert (kept.compression.request, kept.compression.added) == ((Text("Now this."),), "In metres.")


def test_a_request_goes_into_the_summary_once_a_newer_one_follows() -> None:
    t = carrying(long_turn(iterations=10))
    t = compressed(t, 2, 11)  # the request is in the head, a steer has been carried
    asked_again = followed(t, message(Role.ASSISTANT, Text("Done.")), message(Role.USER, Text("And now?")))

    assert carried(asked_again, 2, 21).request == ()


@pytest.mark.parametrize(("chars", "goes_along"), [(2_000, True), (20_000, False)])
def test_a_short_context_goes_along_with_its_request(chars: int, goes_along: bool) -> None:
    memory = {"content": [{"type": "text", "text": "m" * chars}], "context": [{"source": "memory", "chars": chars}]}
    asked = message(Role.USER, Text("Do it."), seq=1, iteration=0)
    context = replace(message(Role.USER, origin=Origin.NOTICE, seq=2, iteration=0), wire=memory)
    t = turn(asked, context, said(), message(Role.USER, Text("quickly"), origin=Origin.STEER, seq=4))

    found = carried(t, 1, 4)

    assert found.request == (Text("Do it."), *((Text("m" * chars),) if goes_along else ()))
    assert found.added == "quickly"
    assert carried(t, 2, 4).request == ()  # its request stays where it is


def test_what_was_carried_is_carried_on() -> None:
    t = carrying(long_turn(iterations=6))
    t = compressed(t, 1, 5)
    steer = message(Role.USER, Text("In metres."), origin=Origin.STEER)
    t = followed(t, steer, *long_turn(iterations=3)[1:])

    again = compressed(t, 1, t.messages[-3].seq)

    assert again.compression is not None
    assert again.compression.request == (Text("Do it."),)
    assert again.compression.added == "In metres."


@pytest.mark.parametrize(
    ("window", "max_output_tokens", "threshold", "most"),
    [
        (128_000, None, 64_000, 128_000 - 16_384),
        (32_000, None, 16_000, 24_000),
        (8_000, 1_000, 4_000, 7_000),
        (8_000, 7_000, 4_000, 4_000),
        (1_200, None, 900, 900),
    ],
)
def test_a_request_leaves_room_for_its_answer(
    window: int, max_output_tokens: int | None, threshold: int, most: int
) -> None:
    agent = AgentSettings("a", "p:m", context_window=window, max_output_tokens=max_output_tokens)

    assert Limits.of(agent) == Limits(window, most, threshold)
    assert output_room(window, max_output_tokens) == window - most


def test_the_share_at_which_to_compress_is_the_agents() -> None:
    limits = Limits.of(AgentSettings("a", "p:m", context_window=100_000, compress_at=0.3))

    assert limits is not None
    assert limits.threshold == 30_000


def test_without_a_window_there_are_no_limits() -> None:
    assert Limits.of(AgentSettings("a", "p:m")) is None


def test_the_words_around_a_summary_are_within_what_a_plan_counts_for_them() -> None:
    t = carrying(long_turn(), tools=("history",))
    kept = compressed(t, 1, 19, text="S")

    assert kept.compression is not None
    around = [b for b in kept.compression.content if b not in kept.compression.request]
    assert sum(map(rough_block, around)) < 200


def test_no_summary_is_asked_for_that_is_longer_than_an_answer_may_be() -> None:
    found = planned(carrying(long_turn(iterations=30), context_window=64_000, max_output_tokens=400))

    assert isinstance(found, Plan)
    assert found.summary_tokens == 300
