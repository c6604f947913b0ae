"""Histories of any well-formed shape, made by Hypothesis, and turns that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from orchestration import compression
from orchestration.ports import Finish, Reply
from orchestration.steps import Compress
from persistence.records.compression import Weight
from persistence.records.message import (
    Block,
    Call,
    CallStatus,
    Image,
    Message,
    Native,
    Origin,
    Result,
    Role,
    Text,
    Thinking,
)
from persistence.records.outcome import News, Outcome
from persistence.records.turn import Turn
from tests.pure.turns import TURN, turn

_sizes = st.sampled_from([1, 20, 200, 2_000, 12_000])
_texts = st.builds(
    lambda size, word: (word * (size // len(word) + 1))[:size], _sizes, st.sampled_from(["ab ", "日本 ", "x"])
)
_thoughts = st.booleans()


@st.composite
def histories(draw: st.DrawFn, *, most: int = 14) -> tuple[Message, ...]:
    """A session as it stands before a model call: requests, answers, calls with all their results, steers."""
    kinds = draw(st.lists(st.sampled_from(["acts", "acts", "acts", "says", "steered"]), min_size=0, max_size=most))
    messages: list[Message] = [_made(Role.USER, Origin.USER, (Text(draw(_texts)),))]
    for n, kind in enumerate(kinds):
        thought = (Thinking(f"thought {n}", Native("issuer", {"signature": f"s{n}"})),) if draw(_thoughts) else ()
        match kind:
            case "acts":
                ids = [f"call{n}_{k}" for k in range(draw(st.integers(1, 3)))]
                calls = tuple(
                    Call(i, "look", draw(st.sampled_from(["{}", '{"what":"' + "y" * 300 + '"}']))) for i in ids
                )
                messages.append(_made(Role.ASSISTANT, Origin.MODEL, (*thought, *calls)))
                results = tuple(Result(i, draw(_texts), CallStatus.SUCCEEDED) for i in ids)
                messages.append(_made(Role.TOOL, Origin.TOOL, results))
            case "says":
                messages.append(_made(Role.ASSISTANT, Origin.MODEL, (*thought, Text(draw(_texts)))))
                picture: tuple[Block, ...] = (Image("image/png", data="aGk="),) if draw(st.booleans()) else ()
                messages.append(_made(Role.USER, Origin.USER, (Text(f"request {n} {draw(_texts)}"), *picture)))
            case _:
                messages.append(_made(Role.USER, Origin.STEER, (Text(f"steer {n}"),)))
    return tuple(replace(m, seq=seq) for seq, m in enumerate(messages, 1))


def _made(role: Role, origin: Origin, content: tuple[Block, ...]) -> Message:
    return Message(0, TURN, 1, role, origin, content)


def carrying(messages: Sequence[Message], *, counted: int | None = None, **changes: Any) -> Turn:
    """A turn with these messages, whose newest answer's request had `counted` tokens."""
    made = turn(*messages, **({"context_window": 16_000} | changes))
    answers = [m.seq for m in messages if m.role is Role.ASSISTANT]
    weight = Weight(answers[-1] - 1, counted) if counted is not None and answers else None
    return replace(made, last_seq=messages[-1].seq, weight=weight)


def followed(t: Turn, *messages: Message) -> Turn:
    """The turn after these messages too, which are numbered."""
    added = tuple(replace(m, seq=t.last_seq + n) for n, m in enumerate(messages, 1))
    return replace(t, messages=(*t.messages, *added), last_seq=t.last_seq + len(added))


def step_of(from_seq: int, to_seq: int, **changes: Any) -> Compress:
    defaults: dict[str, Any] = {"target_seq": to_seq, "summary_tokens": 200, "room": 100_000}
    return Compress("scripted:large", from_seq, to_seq, **(defaults | changes))


def summarised(t: Turn, step: Compress, text: str = "What happened.") -> Outcome:
    """The outcome of an attempt that was answered with `text`."""
    reply = Reply((Text(text),), Finish.STOP, None, "large")
    return compression.Attempt(t, step, "scripted", "large").answered(reply, 0.5)


def after(t: Turn, outcome: Outcome) -> Turn:
    """The turn once the outcome is stored, and nothing else has happened."""
    news = News(t.position + 1, t.last_seq, t.inbox_n, False, False, False)
    return t.after(outcome, news)


def compressed(t: Turn, from_seq: int, to_seq: int, text: str = "What happened.") -> Turn:
    return after(t, summarised(t, step_of(from_seq, to_seq), text))
