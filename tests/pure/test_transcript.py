"""A history in plain words."""

from __future__ import annotations

from dataclasses import replace

from orchestration.redaction import MASK, redacted
from orchestration.transcript import WHOLE, Style, cut, line
from persistence.records.message import Call, CallStatus, Image, Native, Origin, Result, Role, Text, Thinking
from tests.pure.turns import message

SECRET = "sk-" + "Ab1" * 12


def test_every_message_is_told_with_its_number_and_who_spoke() -> None:
    asked = message(Role.USER, Text("Do it."), seq=1)
    steer = message(Role.USER, Text("In metres."), origin=Origin.STEER, seq=2)
    answer = message(Role.ASSISTANT, Text("I will."), Call("c1", "look", '{"what":"up"}'), seq=3)

    assert [line(m, WHOLE) for m in (asked, steer, answer)] == [
        "[1] User: Do it.",
        "[2] User, while the agent worked: In metres.",
        '[3] Agent: I will.\ncalls look with {"what":"up"}',
    ]


def test_results_say_how_their_calls_ended() -> None:
    both = (Result("c1", "saw it", CallStatus.SUCCEEDED), Result("c2", "no such file", CallStatus.FAILED))

    assert line(message(Role.TOOL, *both, seq=4), WHOLE) == "[4] Result: saw it\n[4] Result, failed: no such file"


def test_thinking_is_left_out_and_a_picture_is_named() -> None:
    thought = message(Role.ASSISTANT, Thinking("hm", Native("p", {})), Text("Yes."), seq=2)

    assert line(thought, WHOLE) == "[2] Agent: Yes."
    assert line(message(Role.USER, Image("image/png", data="aGk="), seq=1), WHOLE) == "[1] User: (a picture)"


def test_what_was_sent_is_told_where_it_differs_from_what_is_shown() -> None:
    sent = {"content": [{"type": "text", "text": "with its context"}]}

    assert line(replace(message(Role.USER, Text("short"), seq=1), wire=sent), WHOLE) == "[1] User: with its context"


def test_a_long_text_shows_its_start_its_end_and_how_much_is_missing() -> None:
    text = "start" + "." * 10_000 + "end"

    shown = cut(text, 1_000)

    assert shown.startswith("start")
    assert shown.endswith("end")
    assert "9,008 characters left out" in shown
    assert len(shown) < 1_050


def test_arguments_are_cut_sooner_than_texts() -> None:
    asks = message(Role.ASSISTANT, Call("c1", "write", "y" * 5_000), Text("z" * 5_000), seq=2)

    shown = line(asks, Style())

    assert "z" * 5_000 in shown
    assert "3,500 characters left out" in shown


def test_a_secret_that_a_cut_would_halve_is_masked_all_the_same() -> None:
    for at in range(90):
        text = "." * at + f" {SECRET} " + "." * 5_000 + f" {SECRET} " + "." * at

        shown = cut(text, 100, redacted)

        assert not any(SECRET[n : n + 8] in shown for n in range(len(SECRET) - 8))


def test_a_short_text_is_tidied_too() -> None:
    assert cut(f"key {SECRET}", 1_000, redacted) == f"key {MASK}"
