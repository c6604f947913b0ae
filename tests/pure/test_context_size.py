"""How large the next request is: measured by what the provider counted, and never guessed too low."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestration.context_size import Size, rough_block, rough_text, rough_tokens, size_of
from persistence.records.compression import Weight
from persistence.records.message import Image, Message, Native, Opaque, Role, Text, Thinking
from persistence.records.turn import Turn
from tests.pure.histories import carrying, compressed, followed, histories
from tests.pure.turns import message


def user(chars: int) -> Message:
    return message(Role.USER, Text("x" * chars), seq=1)


def answered(t: Turn, tokens: int, chars: int = 4) -> Turn:
    """The turn after an answer whose request had so many tokens, as its provider counted."""
    weight = Weight(t.last_seq, tokens)
    return replace(followed(t, message(Role.ASSISTANT, Text("y" * chars))), weight=weight)


def test_a_rough_token_is_four_bytes() -> None:
    assert rough_text("abcd" * 100) == 101
    assert rough_text("日本語" * 100) == 226


def test_a_picture_has_one_size_whatever_its_bytes() -> None:
    assert rough_block(Image("image/png", data="A" * 10_000_000)) == 1500


def test_reasoning_that_is_not_shown_has_a_size_all_the_same() -> None:
    assert rough_block(Thinking("", Native("issuer", {"data": "A" * 8_000}))) > 900
    assert rough_block(Opaque(Native("issuer", {"data": "A" * 8_000}))) > 1_900


def test_what_a_message_is_shown_as_does_not_count_where_another_form_is_sent() -> None:
    sent = {"content": [{"type": "text", "text": "x" * 4_000}]}

    assert rough_tokens(replace(message(Role.USER, Text("short")), wire=sent)) > 1_000


def test_without_a_count_the_size_is_the_rough_one_and_holds_the_system_prompt() -> None:
    t = carrying([user(4_000)])
    long_prompt = replace(t, system_prompt="s" * 40_000)

    assert 1_000 < size_of(t).tokens < 1_100
    assert size_of(long_prompt).tokens > 11_000


def test_the_size_is_what_the_provider_counted_and_what_came_since() -> None:
    t = answered(carrying([user(4_000)]), 1_500)
    grown = followed(t, user(8_000))

    assert 1_500 <= size_of(t).tokens < 1_530
    assert 1_500 + 2_000 * 1.4 < size_of(grown).tokens < 1_500 + 2_000 * 1.6


def test_growth_is_counted_dearly_and_savings_cheaply() -> None:
    dear, cheap = Size(1_000, 1.5), Size(1_000, 0.5)

    assert (dear.growth, dear.saving) == (1.5, 1.0)
    assert (cheap.growth, cheap.saving) == (1.0, 0.5)
    assert Size(1_000, 30.0).growth == 2.0
    assert Size(1_000, 0.01).saving == 0.25


def test_a_count_that_cannot_be_is_not_believed() -> None:
    """A server that counts only what its cache did not hold."""
    t = answered(carrying([user(40_000)]), 10)

    assert size_of(t).tokens > 10_000


def test_after_a_compression_the_size_is_what_it_left_and_what_came_since() -> None:
    t = answered(carrying([user(4_000)]), 1_200)
    t = followed(t, user(8_000))
    t = answered(t, 5_000)
    t = answered(followed(t, user(4_000)), 9_000)
    size = size_of(t)

    smaller = compressed(t, 3, 3)

    assert smaller.compression is not None
    assert size_of(smaller).tokens == smaller.compression.weight.tokens < size.tokens
    assert size_of(followed(smaller, user(400))).tokens > size_of(smaller).tokens + 100


def test_an_answer_after_a_compression_measures_anew() -> None:
    t = answered(answered(followed(answered(carrying([user(4_000)]), 1_200), user(8_000)), 5_000), 5_100)
    smaller = compressed(t, 3, 3)

    measured = answered(smaller, 2_222)

    assert 2_222 <= size_of(measured).tokens < 2_240


@given(histories(), st.integers(100, 100_000))
def test_the_size_is_the_same_however_often_and_in_which_order_it_is_asked_for(
    history: tuple[Message, ...], tokens: int
) -> None:
    grown = [carrying(history[: n + 1], counted=tokens) for n in range(len(history))]
    forwards = [size_of(t) for t in grown]
    fresh = tuple(replace(m) for m in history)  # other objects: nothing is known of them

    assert [size_of(t) for t in reversed(grown)] == forwards[::-1]
    assert size_of(carrying(fresh, counted=tokens)) == forwards[-1]
