"""What people read of live text: the newest attempt's words, each once, a restart plain to see."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from persistence.events import StoredEvent
from workers.cli import sentences, shapes
from workers.cli.screen import LiveScreen
from workers.cli.speech import Printer, Said, Speech, Told, together
from workers.live.reader import Entry

_seq = count(1)
MODEL = "main:some-model"


def event(kind: str, **payload: Any) -> StoredEvent:
    return StoredEvent(next(_seq), datetime(2026, 5, 1, 12, tzinfo=UTC), kind, payload)


def answered(n: int, *tools: str) -> StoredEvent:
    return event("model.answered", iteration=n, model=MODEL, tools=list(tools), latency_s=1.0)


def words(text: str, *, at: int = 0, attempt: tuple[int, int] = (1, 1), iteration: int = 1, n: int = 1) -> Entry:
    return Entry("text", text, attempt, iteration, n, MODEL, at)


def thought(text: str, *, at: int = 0, attempt: tuple[int, int] = (1, 1)) -> Entry:
    return Entry("thinking", text, attempt, 1, 1, MODEL, at)


def printed(*told: Told, shows_thinking: bool = False) -> str:
    out = io.StringIO()
    printer = Printer(out, sentences.sentence, shows_thinking=shows_thinking)
    for each in told:
        printer.show(each)
    printer.end()
    return out.getvalue()


def test_words_are_printed_as_they_come_and_events_stand_on_lines_of_their_own() -> None:
    shown = printed(words("Hel"), words("lo.", at=3), answered(1))
    assert shown == f"── iteration 1, {MODEL}\nHello.\n{sentences.sentence(answered(1))}\n"


def test_a_new_attempt_starts_over_visibly() -> None:
    shown = printed(words("Hel"), words("Hello", attempt=(1, 2), n=2))
    assert shown == f"── iteration 1, {MODEL}\nHel\n── iteration 1, attempt 2, {MODEL}: from the beginning\nHello\n"


def test_a_retried_call_never_shows_doubled_text() -> None:
    speech = Speech()
    for entry in (words("Hello wor"), words("Hello world.", attempt=(1, 2), n=2)):
        speech.take(entry)
    assert speech.text == "Hello world."


@pytest.mark.parametrize("late", [(1, 1), (0, 99)])
def test_what_an_older_attempt_or_owner_still_says_is_not_shown(late: tuple[int, int]) -> None:
    speech = Speech()
    speech.take(words("New.", attempt=(1, 2)))
    assert speech.take(words("old", at=4, attempt=late)) == []
    assert speech.text == "New."


def test_the_words_of_another_worker_take_the_place_of_those_before() -> None:
    speech = Speech()
    speech.take(words("From the dead wor", attempt=(1, 9)))
    (heading, said) = speech.take(words("From the next.", attempt=(3, 9)))
    assert (heading.is_heading, "from the beginning" in heading.text) == (True, True)
    assert (said, speech.text) == (Said("From the next."), "From the next.")


def test_what_was_lost_on_the_way_is_said_and_what_comes_twice_is_not() -> None:
    assert printed(words("one "), words("three", at=8)).endswith("\none […] three\n")
    assert printed(words("one "), words("ne two", at=1)).endswith("\none two\n")
    assert printed(words("in the middle", at=50)).endswith("\n[…] in the middle\n")


def test_thinking_is_shown_to_those_who_ask_and_marked_as_such() -> None:
    told = thought("Hm."), words("Yes.")
    assert printed(*told) == f"── iteration 1, {MODEL}\nYes.\n"
    assert printed(*told, shows_thinking=True) == f"── iteration 1, {MODEL}\n(thinking) Hm.\nYes.\n"


def test_words_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in printed(words("\x1b[2Jgone"), Entry("progress", "\x1b[2J\nx", tool="a\nb"))


def test_progress_and_states_are_shown_until_something_happens() -> None:
    speech = Speech()
    speech.take(Entry("progress", "45 %", tool="build"))
    assert speech.note == "build: 45 %"
    speech.take(Entry("state", "backing_off"))
    assert speech.note == "it rests before another attempt"
    speech.hear(answered(1))
    assert speech.note == ""
    assert printed(Entry("progress", "45 %", tool="build")) == "── build: 45 %\n"


def test_of_the_past_only_what_is_not_final_is_told_again() -> None:
    """Somebody begins to watch in iteration 2; the stream still holds the words of iteration 1."""
    stream = [words("First.", attempt=(1, 1)), words("Sec", attempt=(1, 5), iteration=2)]
    reads = iter([stream, [words("ond.", at=3, attempt=(1, 5), iteration=2)], []])
    batches = [[answered(1, "look")], [], [answered(2)]]
    told = [each for batch in together(batches, lambda: next(reads), at_a_time=10) for each in batch]
    shown = printed(*told)
    assert "First." not in shown
    assert f"── iteration 2, {MODEL}\nSecond.\n" in shown


def test_of_a_turn_that_has_ended_nothing_is_told_again() -> None:
    batches = [[answered(1, "look"), event("turn.ended")]]
    told = [e for batch in together(batches, lambda: [words("cut off", iteration=2)], at_a_time=10) for e in batch]
    assert [e.type for e in told if isinstance(e, StoredEvent)] == ["model.answered", "turn.ended"]
    assert len(told) == 2


def test_the_tail_of_an_answer_that_comes_after_its_event_is_not_lost() -> None:
    speech = Speech()
    speech.take(words("Hel"))
    speech.hear(answered(1, "look"))
    speech.take(words("lo.", at=3))
    assert speech.text == "Hello."


def test_live_text_as_json_has_its_mark() -> None:
    assert shapes.live(words("Hi", at=2, attempt=(3, 4), n=2)) == {
        "type": "live.text",
        "iteration": 1,
        "attempt": [3, 4],
        "n": 2,
        "model": MODEL,
        "at": 2,
        "text": "Hi",
    }
    assert shapes.live(Entry("progress", "45 %", tool="b")) == {"type": "live.progress", "tool": "b", "text": "45 %"}
    assert shapes.live(Entry("state", "compressing")) == {"type": "live.state", "text": "compressing"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screened(*told: Told, **how: Any) -> str:
    out = Terminal()
    with LiveScreen(out, wants_words=True, **how) as screen:
        for each in told:
            screen.show(each)
            screen._live.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())


def test_on_a_terminal_words_show_at_once_and_stay_above_their_calls() -> None:
    shown = screened(words("I look it"), words(" up.", at=9), answered(1, "look"))
    assert "I look it" in shown.split("I look it up.")[0]
    kept = screened(words("I look it up."), answered(1, "look"), event("tool.ended", name="look", status="succeeded"))
    assert kept.rstrip().rindex("I look it up.") < kept.rindex("look ✓")


def test_on_a_terminal_a_new_attempt_wipes_the_words_of_the_one_before() -> None:
    screen = LiveScreen(Terminal(), wants_words=True)
    screen.show(words("Hello wor"))
    screen.show(event("model.failed", attempt=1, provider="main", model="m", error="server_error"))
    screen.show(words("Hel", attempt=(1, 2), n=2))
    shown = "\n".join(str(line) for line in screen._shown().renderables)
    assert "Hello wor" not in shown
    assert "attempt 2" in shown
    assert "\nHel\n" in shown


def test_on_a_terminal_a_long_text_shows_its_end() -> None:
    screen = LiveScreen(Terminal(), wants_words=True)
    screen.show(words("\n".join(f"line {n}" for n in range(500))))
    shown = [str(line).strip() for line in screen._shown().renderables]
    assert "line 499" in shown
    assert "line 0" not in shown
    assert len(shown) < 60
