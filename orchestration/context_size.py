"""How large a request is, in tokens. Pure.

A rough token is four bytes of text; how many real ones it makes is learned from what the provider counted for the
newest answer. Where the two can differ, growth is counted dearly and savings cheaply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from persistence.records.compression import SHOWN_CHARS
from persistence.records.message import Block, Call, Image, Message, Opaque, Result, Text, Thinking, dumps
from persistence.records.turn import Turn

BYTES_PER_TOKEN = 4
# What a provider counts for a picture, whatever its bytes.
IMAGE_TOKENS = 1500
# Of a request that no provider has counted yet, a rough token may be this many.
UNCOUNTED = 1.5
# What stands around a block and a message on the wire.
_FRAME_TOKENS = 6
# The bounds of what is believed of a provider's count: tools weigh on a short request, and some servers count only what
# their cache did not hold.
_MOST_RATIO, _LEAST_RATIO = 2.0, 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """The next request of a turn. `ratio` is the number of tokens that a rough one makes."""

    tokens: int
    ratio: float

    @property
    def growth(self) -> float:
        """The ratio for what is added, never too low."""
        return min(max(self.ratio, 1.0), _MOST_RATIO)

    @property
    def saving(self) -> float:
        """The ratio for what is taken away, never too high."""
        return max(min(self.ratio, 1.0), _LEAST_RATIO)

    def grown(self, rough: int) -> Size:
        return replace(self, tokens=self.tokens + int(rough * self.growth))


_rough: WeakKeyDictionary[Message, int] = WeakKeyDictionary()


def rough_tokens(message: Message) -> int:
    """The size of one message, whoever counts it. Cheap: computed once for each message that is alive."""
    found = _rough.get(message)
    if found is None:
        found = _rough[message] = _FRAME_TOKENS + sum(map(rough_block, message.sent))
    return found


def rough_text(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 1


def rough_block(block: Block) -> int:
    match block:
        case Text(text=text):
            return rough_text(text)
        case Call(name=name, arguments=arguments):
            return _FRAME_TOKENS + rough_text(name) + rough_text(arguments)
        case Result(content=content, images=images):
            return _FRAME_TOKENS + rough_text(content) + IMAGE_TOKENS * len(images)
        case Thinking(text=text, native=native):
            return rough_text(text) if text else rough_text(dumps(native.data)) // 2
        case Image():
            return IMAGE_TOKENS
        case Opaque(native=native):
            return rough_text(dumps(native.data))


def size_of(turn: Turn) -> Size:
    """The size of the turn's next request.

    It is what the provider counted for the newest answer, or what was estimated at a later compression, and all that
    came since. Without either it is the rough size, in which tools are not counted.
    """
    weight, compression = turn.weight, turn.compression
    if weight is not None and (compression is None or weight.seq >= compression.weight.seq):
        counted = _rough_prompt(turn) + _rough_up_to(turn, weight.seq)
        believed = weight.tokens >= counted * _LEAST_RATIO
        size = Size(weight.tokens, weight.tokens / counted) if believed else Size(counted, 1.0)
        return size.grown(_rough_since(turn, weight.seq))
    if compression is not None:
        size = Size(compression.weight.tokens, compression.ratio)
        return size.grown(_rough_since(turn, compression.weight.seq))
    return Size(_rough_prompt(turn) + _rough_since(turn, 0), 1.0)


def _rough_prompt(turn: Turn) -> int:
    return rough_text(turn.system_prompt)


def _rough_since(turn: Turn, seq: int) -> int:
    """The rough size of the messages after `seq`."""
    total = 0
    for message in reversed(turn.messages):
        if message.seq <= seq:
            break
        total += rough_tokens(message)
    return total


# The rough size of a history up to a message, and the compression and the length of results that it holds for. So a
# history that grows is not added up again at every step.
_totals: WeakKeyDictionary[Message, tuple[tuple[int, int], int]] = WeakKeyDictionary()


def _rough_up_to(turn: Turn, seq: int) -> int:
    """The rough size of the messages up to `seq`."""
    state = (turn.compression.n if turn.compression else 0, turn.counters.remedies.get(SHOWN_CHARS, 0))
    newest: Message | None = None
    total = 0
    for message in reversed(turn.messages):
        if message.seq > seq:
            continue
        newest = newest or message
        known = _totals.get(message)
        if known is not None and known[0] == state:
            total += known[1]
            break
        total += rough_tokens(message)
    if newest is not None:
        _totals[newest] = (state, total)
    return total
