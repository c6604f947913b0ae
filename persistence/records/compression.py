"""What the model sees in place of the middle of its history. The messages themselves stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from persistence.records.message import (
    Block,
    Json,
    Message,
    Origin,
    Result,
    Role,
    Text,
    block_to_json,
    content_from_json,
)

# Where the parts of a compression stand in its content: a notice, the summary, a notice; what the user added to the
# request, a notice; then the blocks of the request itself. A part that there is none of is an empty text.
_SUMMARY, _ADDED, _REQUEST = 1, 3, 5

# Among a turn's counters of remedies: of results from this message on, the model sees so many characters.
SHOWN_FROM, SHOWN_CHARS = "shown_from", "shown_chars"
_LEFT_OUT = "\n[… left out here: all of it would not fit …]\n"


@dataclass(frozen=True, slots=True)
class Weight:
    """The tokens of a request whose newest message is `seq`: as its provider counted them, or as they were estimated."""

    seq: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Compression:
    """The model sees the messages before `from_seq`, this content, and the messages after `to_seq`.

    The content is kept as it is shown: it is part of the prefix of every later request, which must stay the same to
    the byte. `weight` is that of the request right after the compression, `ratio` the tokens that it was counted with
    for each token of a rough estimate.
    """

    n: int
    turn_id: UUID
    from_seq: int
    to_seq: int
    content: tuple[Block, ...]
    weight: Weight
    ratio: float

    @property
    def summary(self) -> str:
        return self._text(_SUMMARY)

    @property
    def added(self) -> str:
        """What the user added to the request while it was worked on."""
        return self._text(_ADDED)

    @property
    def request(self) -> tuple[Block, ...]:
        """The request that is worked on, if it is one of the hidden messages."""
        return self.content[_REQUEST:]

    def message(self) -> Message:
        """What stands in the place of the messages; it bears the number of the first of them."""
        return Message(self.from_seq, self.turn_id, 0, Role.USER, Origin.NOTICE, self.content)

    def _text(self, place: int) -> str:
        block = self.content[place]
        assert isinstance(block, Text), "every part before the request is words"
        return block.text

    def hides(self, message: Message) -> bool:
        return self.from_seq <= message.seq <= self.to_seq

    def applied_to(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """`messages` as the model sees them."""
        kept = [m for m in messages if not self.hides(m)]
        head = sum(m.seq < self.from_seq for m in kept)
        return (*kept[:head], self.message(), *kept[head:])

    def to_json(self) -> Json:
        """Everything that the columns of its row do not say."""
        return {
            "content": [block_to_json(b) for b in self.content],
            "weight": {"seq": self.weight.seq, "tokens": self.weight.tokens},
            "ratio": self.ratio,
        }

    @classmethod
    def from_json(cls, n: int, turn_id: UUID, from_seq: int, to_seq: int, data: Json) -> Compression:
        weight = Weight(data["weight"]["seq"], data["weight"]["tokens"])
        return cls(n, turn_id, from_seq, to_seq, content_from_json(data["content"]), weight, data["ratio"])


def shown(messages: tuple[Message, ...], remedies: Mapping[str, int]) -> tuple[Message, ...]:
    """`messages` with their results no longer than the turn shows them, since they were more than its model takes.

    Shown once more, or shown shorter, they are the same as if they had been shown so at once.
    """
    most, first = remedies.get(SHOWN_CHARS), remedies.get(SHOWN_FROM, 0)
    if most is None:
        return messages
    return tuple(_shortened(m, most) if m.seq >= first and m.role is Role.TOOL else m for m in messages)


def _shortened(message: Message, most: int) -> Message:
    content = tuple(
        replace(b, content=b.content[: most * 3 // 4] + _LEFT_OUT + b.content[-(most // 4) :])
        if isinstance(b, Result) and len(b.content) > most + len(_LEFT_OUT)
        else b
        for b in message.content
    )
    return message if content == message.content else replace(message, content=content)
