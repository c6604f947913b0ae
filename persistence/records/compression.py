"""What the model sees in place of the middle of its history. The messages themselves stay as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from persistence.records.message import (
    Block,
    Json,
    Message,
    Origin,
    Role,
    Text,
    block_to_json,
    content_from_json,
)

# Where the parts of a compression stand in its content: the notice before the summary, the summary, the notice after
# it, then the words of the user that are carried along as they are.
_SUMMARY = 1
_CARRIED = 3


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
        block = self.content[_SUMMARY]
        assert isinstance(block, Text)
        return block.text

    @property
    def carried(self) -> tuple[Block, ...]:
        """The user's words that must not be lost in a summary."""
        return self.content[_CARRIED:]

    def message(self) -> Message:
        """What stands in the place of the messages; it bears the number of the first of them."""
        return Message(self.from_seq, self.turn_id, 0, Role.USER, Origin.NOTICE, self.content)

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
