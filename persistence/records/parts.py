"""An answer that came in parts: cut at the model's output limit or paused by its provider, and gone on with.

Each part is a message of its own, stored as it arrives. For people they are one answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from uuid import UUID

from persistence.records.message import PART, Block, Message, Origin, Role, Text

# Words that a model says again at the seam are left out, where they are enough to be no coincidence: so many
# characters, and so many different words in them.
_LEAST_CHARS, _LEAST_WORDS, _MOST_CHARS = 20, 4, 500


class Why(StrEnum):
    """Why a message is not the whole of its answer."""

    LENGTH = "length"
    WINDOW = "window"
    PAUSE = "pause"


def part(message: Message, why: Why) -> Message:
    """`message` as one that its answer does not end with."""
    return replace(message, wire={**(message.wire or {}), PART: why.value})


def is_cut(message: Message) -> bool:
    """Whether the output limit came before the end of it."""
    return message.wire is not None and message.wire.get(PART) == Why.LENGTH


def fills_window(message: Message) -> bool:
    """Whether the model's context window was full before the end of it."""
    return message.wire is not None and message.wire.get(PART) == Why.WINDOW


def is_paused(message: Message) -> bool:
    """Whether the provider wants this message back as it is, to go on with it."""
    return message.wire is not None and message.wire.get(PART) == Why.PAUSE


def first_of(messages: Sequence[Message], at: int) -> int:
    """The place of the first part of the answer that the message at `at` belongs to."""
    first = at
    for place in range(at - 1, -1, -1):
        message = messages[place]
        if message.role is Role.USER and message.origin is not Origin.USER:
            continue
        if not message.is_part or message.turn_id != messages[at].turn_id:
            break
        first = place
    return first


def answer(messages: Sequence[Message], turn_id: UUID) -> str:
    """The words of a turn's newest answer, all parts of it; nothing if there is none yet."""
    at = _newest(messages, turn_id)
    if at is None:
        return ""
    found = [m for m in messages[first_of(messages, at) : at + 1] if m.role is Role.ASSISTANT]
    return joined(m.text for m in found)


def is_unfinished(messages: Sequence[Message], turn_id: UUID) -> bool:
    """Whether the turn is in the middle of an answer, of which there may be no word yet."""
    at = _newest(messages, turn_id)
    return at is not None and messages[at].is_part


def unfinished(messages: Sequence[Message], turn_id: UUID) -> str:
    """The words so far of an answer that the turn is in the middle of."""
    return answer(messages, turn_id) if is_unfinished(messages, turn_id) else ""


def joined(texts: Iterable[str]) -> str:
    """Texts as one, without a seam."""
    whole = ""
    for text in texts:
        whole += text[_said_again(whole, text) :]
    return whole


def as_read(messages: Iterable[Message]) -> Iterator[tuple[Message, tuple[int, ...]]]:
    """`messages` as people read them: the parts of an answer as one, where the first of them stands.

    With each, the numbers of its parts (none where it is whole). What we said between two parts is left out; what a
    user said there follows.
    """
    waiting: list[Message] = []
    between: list[Message] = []
    for message in messages:
        is_open = bool(waiting)
        if message.role is Role.ASSISTANT and (message.is_part or is_open):
            if is_open and waiting[0].turn_id != message.turn_id:
                yield from _told(waiting, between)
                waiting, between = [], []
            waiting.append(message)
            if not message.is_part:
                yield from _told(waiting, between)
                waiting, between = [], []
        elif is_open and message.role is Role.USER and message.origin is not Origin.USER:
            between.append(message)
        else:
            yield from _told(waiting, between)
            waiting, between = [], []
            yield message, ()
    yield from _told(waiting, between)


def _told(parts: Sequence[Message], between: Sequence[Message]) -> Iterator[tuple[Message, tuple[int, ...]]]:
    if parts:
        content = parts[0].content
        for message in parts[1:]:
            content = _appended(content, message.content)
        seqs = tuple(m.seq for m in parts) if len(parts) > 1 else ()
        yield replace(parts[0], content=content), seqs
    yield from ((m, ()) for m in between if m.origin is not Origin.NOTICE)


def _appended(content: tuple[Block, ...], more: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks of two parts: the last text of the one goes on with the first text of the other."""
    ends = max((n for n, b in enumerate(content) if isinstance(b, Text)), default=None)
    begins = next((n for n, b in enumerate(more) if isinstance(b, Text)), None)
    if ends is None or begins is None:
        return (*content, *more)
    first, second = content[ends], more[begins]
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    whole = Text(joined((first.text, second.text)))
    return (*content[:ends], *content[ends + 1 :], *more[:begins], whole, *more[begins + 1 :])


def _newest(messages: Sequence[Message], turn_id: UUID) -> int | None:
    places = (n for n in range(len(messages) - 1, -1, -1) if messages[n].role is Role.ASSISTANT)
    return next((n for n in places if messages[n].turn_id == turn_id), None)


def _said_again(before: str, after: str) -> int:
    """How many characters `after` repeats of the end of `before`."""
    for size in range(min(len(before), len(after), _MOST_CHARS), _LEAST_CHARS - 1, -1):
        if before.endswith(after[:size]) and len(set(after[:size].split())) >= _LEAST_WORDS:
            return size
    return 0
