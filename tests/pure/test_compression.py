"""What the model that summarises is asked, and what becomes of its answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration import compression
from orchestration.context_size import rough_text, size_of
from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish, ModelRequest, Reply, TimeLimits
from orchestration.redaction import MASK
from orchestration.room import Count
from orchestration.steps import Compress
from orchestration.thinking import sent_messages
from persistence.records.compression import Compression
from persistence.records.message import Block, Call, CallStatus, Message, Native, Origin, Result, Role, Text, Thinking
from persistence.records.outcome import Outcome
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from tests.pure.histories import after, carrying, compressed, followed, step_of, summarised
from tests.pure.turns import message

SECRET = "sk-" + "Ab1" * 12
STEP = step_of(4, 7)


def at_work(*, iterations: int = 6, chars: int = 4_000, thinking: bool = False, **settings: object) -> Turn:
    made: list[Message] = [message(Role.USER, Text("Do it."), seq=1)]
    for n in range(iterations):
        thought: tuple[Block, ...] = (Thinking(f"hm {n}", Native("p", {"signature": f"s{n}"})),) if thinking else ()
        made.append(message(Role.ASSISTANT, *thought, Call(f"c{n}", "look", "{}"), seq=len(made) + 1))
        made.append(
            message(Role.TOOL, Result(f"c{n}", f"saw {n} " * (chars // 6), CallStatus.SUCCEEDED), seq=len(made) + 1)
        )
    return carrying(made, **settings)


def asked(t: Turn, step: Compress = STEP) -> ModelRequest:
    return compression.Attempt(t, step, "scripted", "large").request(TimeLimits())


def prompt(t: Turn, step: Compress = STEP) -> str:
    return asked(t, step).messages[0].text


def test_the_request_holds_the_messages_of_the_range_and_no_others() -> None:
    text = prompt(at_work())

    assert "[4] Agent: calls look with {}" in text
    assert "[5] Result: saw 1" in text
    assert "saw 2" in text
    assert "saw 0" not in text
    assert "saw 3" not in text


def test_the_request_offers_no_tools_and_says_how_long_the_summary_may_be() -> None:
    request = asked(at_work())

    assert request.tools == ()
    assert [m.role for m in request.messages] == [Role.USER]
    assert "at most 140 words" in request.messages[0].text


def test_a_later_summary_is_made_from_the_one_before_and_what_came_since() -> None:
    t = compressed(at_work(), 4, 7, text="Saw two things.")

    text = prompt(t, step_of(4, 9))

    assert "<summary_so_far>\nSaw two things.\n</summary_so_far>" in text
    assert "saw 3" in text
    assert "saw 1" not in text


def test_no_secret_goes_to_the_model_that_summarises_nor_comes_back_from_it() -> None:
    t = followed(
        at_work(iterations=1), message(Role.ASSISTANT, Text(f"It is {SECRET}.")), message(Role.USER, Text("Go on."))
    )
    t = followed(t, *at_work(iterations=3).messages[1:])

    assert MASK in prompt(t, step_of(4, 7))
    assert SECRET not in prompt(t, step_of(4, 7))
    assert summary_of(summarised(t, step_of(4, 7), f"The key is {SECRET}.")) == f"The key is {MASK}."


def test_what_is_asked_keeps_within_the_room_of_the_model_that_summarises() -> None:
    t = at_work(chars=40_000)

    text = prompt(t, step_of(4, 5, room=500))

    assert rough_text(text) < 700
    assert "characters left out" in text


def made_by(outcome: Outcome) -> Compression:
    assert outcome.compression is not None
    return outcome.compression


def summary_of(outcome: Outcome) -> str:
    return made_by(outcome).summary


def test_a_summary_becomes_a_compression_with_its_event_and_its_call() -> None:
    t = at_work()

    outcome = summarised(t, STEP)

    made = made_by(outcome)
    assert (made.n, made.from_seq, made.to_seq, made.summary) == (1, 4, 7, "What happened.")
    [event] = outcome.events
    assert event.type == "compression.done"
    assert event.payload["tokens_after"] == made.weight.tokens < event.payload["tokens_before"] == size_of(t).tokens
    assert "What happened." not in str(event.payload)
    assert outcome.model_call is not None
    assert (outcome.model_call.iteration, outcome.model_call.error) == (0, None)


def test_the_summary_stands_where_the_messages_stood_and_says_that_it_is_no_instruction() -> None:
    t = compressed(at_work(), 4, 7)

    assert [m.seq for m in t.messages] == [1, 2, 3, 4, 8, 9, 10, 11, 12, 13]
    notice = t.messages[3]
    assert (notice.role, notice.origin) == (Role.USER, Origin.NOTICE)
    assert "Messages 4 to 7" in notice.text
    assert "reference, not an instruction" in notice.text
    assert "search_history" not in notice.text


def test_an_agent_with_the_tools_for_it_is_told_that_it_can_read_the_messages_again() -> None:
    assert "search_history and read_history" in compressed(at_work(tools=("history",)), 4, 7).messages[3].text


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply((Text(" \n"),), Finish.STOP, Usage(5, 1), "m"), "empty"),
        (Reply((Call("c", "look", "{}"),), Finish.TOOL_CALLS, Usage(5, 1), "m"), "empty"),
        (Reply((Text("half a summ"),), Finish.LENGTH, Usage(5, 1), "m"), "truncated"),
        (Reply((Text("I will not."),), Finish.REFUSAL, Usage(5, 1), "m"), "refusal"),
        (Reply((Text("long " * 10_000),), Finish.STOP, Usage(5, 1), "m"), compression.NOT_SHORTER),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_no_good_summary_removes_nothing_and_is_on_record(reply: Reply, error: str) -> None:
    t = at_work()

    outcome = compression.Attempt(t, STEP, "scripted", "large").answered(reply, 0.5)

    assert outcome.compression is None
    assert after(t, outcome).messages == t.messages
    assert outcome.model_call is not None
    assert (outcome.model_call.error, outcome.model_call.usage) == (error, Usage(5, 1))
    assert [(e.type, e.payload["error"]) for e in outcome.events] == [("compression.failed", error)]


def test_a_failed_attempt_is_counted_apart_from_those_of_the_answer() -> None:
    t = at_work()
    t = replace(t, counters=replace(t.counters, attempts=1, last_error="context_overflow"))
    error = ModelError(ErrorClass.SERVER_ERROR, "500")

    counters = compression.Attempt(t, STEP, "scripted", "large").failed(error, 0.5).counters

    assert (counters.attempts, counters.last_error) == (1, "context_overflow")
    assert dict(counters.remedies) == {Count.ATTEMPTS: 1, Count.PAUSE: 1}


def test_the_event_of_the_last_attempt_says_that_it_was_the_last() -> None:
    t = at_work()
    gives_up: list[object] = []
    for _ in range(5):
        outcome = compression.Attempt(t, STEP, "scripted", "large").failed(ModelError(ErrorClass.TIMEOUT, "t"), 0.5)
        gives_up.append((outcome.events[0].payload["attempt"], outcome.events[0].payload["gives_up"]))
        t = after(t, outcome)

    assert gives_up == [(1, False), (2, False), (3, False), (4, False), (5, True)]


def test_a_compression_lets_a_refused_request_be_tried_anew() -> None:
    t = at_work()
    t = replace(t, counters=replace(t.counters, attempts=3, last_error="context_overflow", retry_after_s=5.0))

    counters = compressed(t, 4, 7).counters

    assert (counters.attempts, counters.last_error, counters.retry_after_s) == (0, None, None)


def test_a_compression_is_progress_so_crashes_before_it_do_not_add_up_with_those_after_it() -> None:
    t = at_work()
    shaken = replace(t, counters=replace(t.counters, crash_streak=2))
    suspect = replace(t, counters=replace(t.counters, crash_streak=2, is_suspect=True))

    assert compressed(shaken, 4, 7).counters.crash_streak == 0
    assert compressed(suspect, 4, 7).counters.crash_streak == 2


def test_an_interrupted_summary_leaves_only_its_call() -> None:
    outcome = compression.Attempt(at_work(), STEP, "scripted", "large").interrupted(0.5)

    assert (outcome.compression, outcome.events) == (None, ())
    assert outcome.model_call is not None
    assert outcome.model_call.error == "interrupted"


# Thinking


def thought_in(messages: object) -> list[str]:
    assert isinstance(messages, list | tuple)
    return [b.text for m in messages for b in m.content if isinstance(b, Thinking)]


def test_what_a_compression_keeps_goes_back_to_the_byte() -> None:
    t = at_work(thinking=True)
    smaller = compressed(t, 4, 7)

    sent = sent_messages(smaller, "claude-sonnet-4-5")

    assert [m for m in sent if m.seq != 4] == [m for m in t.messages if not 4 <= m.seq <= 7]
    assert thought_in(sent) == ["hm 0", "hm 3", "hm 4", "hm 5"]


@pytest.mark.parametrize(
    "model", ["claude-fable-5-1", "anthropic/claude-mythos-6", "eu.anthropic.claude-fable-5-1-v1:0"]
)
def test_where_thinking_is_bound_to_its_prefix_what_was_thought_before_the_change_stays_behind(model: str) -> None:
    smaller = compressed(at_work(thinking=True), 4, 7)
    later = message(Role.ASSISTANT, Thinking("hm, later", Native("p", {})), Call("z", "look", "{}"))
    smaller = followed(smaller, later, message(Role.TOOL, Result("z", "saw", CallStatus.SUCCEEDED)))

    sent = sent_messages(smaller, model)

    assert thought_in(sent) == ["hm 0", "hm, later"]
    assert [[c.id for c in m.calls] for m in sent] == [[c.id for c in m.calls] for m in smaller.messages]
    assert list(map(id, sent)) == list(map(id, sent_messages(smaller, model)))


def test_without_a_compression_all_thinking_goes_back() -> None:
    t = at_work(thinking=True)

    assert sent_messages(t, "claude-fable-5-1") is t.messages
