"""How large a request may be, and what of the history a summary may replace. Pure; sizes are in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from orchestration.context_size import Size, rough_block, rough_text, rough_tokens
from orchestration.costs import USUAL_OUTPUT_TOKENS
from persistence.records import parts
from persistence.records.agent import AgentSettings
from persistence.records.context import sources_of
from persistence.records.message import Block, Message, Origin, Role
from persistence.records.turn import Turn

# Below this a summary would save nothing worth a model call.
_LEAST_THRESHOLD = 1_000
# Head and tail of the history that a summary leaves alone: messages, and a share of the threshold.
HEAD = 3
_TAIL_SHARE = 0.2
# A summary is worth its call when it frees this share of the threshold.
_WORTH = 0.1
# How long a summary may be: a share of what it replaces, within bounds.
_SUMMARY_SHARE, _SHORTEST_SUMMARY, _LONGEST_SUMMARY = 0.2, 150, 10_000
# The fixed words around a summary.
_NOTICE_TOKENS = 200
# What is carried along of the words that the user added to a request, in characters: the newest.
_ADDED_CHARS = 8_000
# The context of a request (memory, for one) goes along with it as long as it is no longer than this.
_CONTEXT_TOKENS = 2_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The window of a model, what a request may fill of it, and the size above which a history is compressed."""

    window: int
    most: int
    threshold: int

    @classmethod
    def of(cls, agent: AgentSettings) -> Limits | None:
        """None where nobody said how large the window is: then only the provider's refusal tells."""
        return None if agent.context_window is None else cls.within(agent.context_window, agent)

    @classmethod
    def within(cls, window: int, agent: AgentSettings) -> Limits:
        most = window - output_room(window, agent.max_output_tokens)
        return cls(window, most, min(max(int(window * agent.compress_at), _LEAST_THRESHOLD), most))

    @property
    def tail(self) -> int:
        return int(self.threshold * _TAIL_SHARE)

    @property
    def worth(self) -> int:
        """What a compression must save, where there is no need for one."""
        return int(self.threshold * _WORTH)


@dataclass(frozen=True, slots=True)
class Plan:
    """Replace these messages by a summary of at most about `summary_tokens`, which saves `gain` tokens at least."""

    from_seq: int
    to_seq: int
    summary_tokens: int
    gain: int


@dataclass(frozen=True, slots=True)
class Carried:
    """A request, word for word, and what the user added to it while it was worked on."""

    request: tuple[Block, ...] = ()
    added: str = ""

    @property
    def rough(self) -> int:
        return sum(map(rough_block, self.request)) + rough_text(self.added)


class Why(StrEnum):
    """Why nothing can be compressed."""

    NOTHING_SEEN = "the model has seen nothing of it yet"
    NOTHING_LEFT = "all that is left is protected"
    NO_GAIN = "a summary would be no shorter"
    NO_SUMMARY = "no summary of it could be made"
    TOO_OFTEN = "it was compressed several times and is still refused"
    NEVER = "the agent is not to compress"


def output_room(window: int, max_output_tokens: int | None) -> int:
    """What of a window is kept free for the answer."""
    return min(max_output_tokens or USUAL_OUTPUT_TOKENS, window // (2 if max_output_tokens else 4))


def plan(turn: Turn, *, limits: Limits, size: Size, is_last_resort: bool = False) -> Plan | Why:
    """What to compress, or why nothing can be.

    Never touched: the system prompt, the first three messages, a tail of newest messages with the newest answer and
    whatever came after it (results that the model has not seen, the newest request); a call and its results stay
    together. A request that is not in the tail is carried along word for word. The last resort, before a turn would
    have to end, gives up the head, of the tail all but what has to be there, and what earlier turns ended on before the
    model saw it: else one request that is too large would end every turn after it.
    """
    messages = turn.messages
    newest = max((n for n, m in enumerate(messages) if m.role is Role.ASSISTANT), default=-1)
    newest = parts.first_of(messages, newest) if newest >= 0 else newest
    if is_last_resort:
        newest = max(newest, max((n for n, m in enumerate(messages) if _is_request(m)), default=-1))
    if newest < 0:
        return Why.NOTHING_SEEN
    start = _start(turn, 0 if is_last_resort else HEAD)
    end = _tail_start(messages, start, newest, 0 if is_last_resort else int(limits.tail / size.growth))
    return _sized(turn, messages[start:end], limits, size)


def plan_rest(turn: Turn, to_seq: int, *, limits: Limits, size: Size) -> Plan | Why:
    """What is left to compress of a plan that went up to `to_seq` and was carried out in part."""
    assert turn.compression is not None
    start = turn.compression.from_seq
    return _sized(turn, tuple(m for m in turn.messages if start <= m.seq <= to_seq), limits, size)


def _sized(turn: Turn, middle: Sequence[Message], limits: Limits, size: Size) -> Plan | Why:
    if not any(not _is_summary(turn, m) for m in middle):
        return Why.NOTHING_LEFT
    replaced = sum(map(rough_tokens, middle))
    longest = min(_LONGEST_SUMMARY, turn.agent.max_output_tokens or _LONGEST_SUMMARY)
    most = min(longest * 3 // 4, max(limits.window // 10, _SHORTEST_SUMMARY))
    summary = min(max(int(replaced * _SUMMARY_SHARE), _SHORTEST_SUMMARY), most)
    kept = carried(turn, middle[0].seq, middle[-1].seq)
    gain = int((replaced - summary - _NOTICE_TOKENS - kept.rough) * size.saving)
    if gain <= 0:
        return Why.NO_GAIN
    return Plan(middle[0].seq, middle[-1].seq, summary, gain)


def carried(turn: Turn, from_seq: int, to_seq: int) -> Carried:
    """The words of the user that go along with a summary of these messages, and the context of their request.

    Nothing where a newer request follows them: what was asked before is then a matter for the summary.
    """
    if any(_is_request(m) for m in turn.messages if m.seq > to_seq):
        return Carried()
    before = turn.compression
    request, added = (before.request, before.added) if before else ((), "")
    for message in new_messages(turn, from_seq, to_seq):
        if _is_request(message):
            request, added = message.sent, ""
        elif sources_of(message) is not None:
            is_short = sum(map(rough_block, message.sent)) <= _CONTEXT_TOKENS
            request = (*request, *message.sent) if request and is_short else request
        elif message.origin is Origin.STEER:
            added = f"{added}\n\n{message.text}".strip()
    return Carried(request, added[-_ADDED_CHARS:])


def new_messages(turn: Turn, from_seq: int, to_seq: int) -> tuple[Message, ...]:
    """The messages of the range that no summary stands for yet."""
    return tuple(m for m in turn.messages if from_seq <= m.seq <= to_seq and not _is_summary(turn, m))


def _start(turn: Turn, head: int) -> int:
    """Where the middle begins: where it began before, or after the head."""
    start = next((n for n, m in enumerate(turn.messages) if _is_summary(turn, m)), len(turn.messages))
    return min(start, _boundary(turn.messages, head))


def _boundary(messages: Sequence[Message], at: int) -> int:
    """The first place from `at` on that does not part a call from its results."""
    while at < len(messages) and messages[at].role is Role.TOOL:
        at += 1
    return at


def _tail_start(messages: Sequence[Message], start: int, newest: int, tail: int) -> int:
    """Where the tail begins: at the newest answer, or before it as far as `tail` rough tokens go."""
    begin = max(newest, start)
    after = sum(map(rough_tokens, messages[begin:]))
    before = range(begin - 1, start - 1, -1)
    for at, weight in zip(before, accumulate(rough_tokens(messages[n]) for n in before), strict=True):
        if after + weight > tail:
            break
        if messages[at].role is not Role.TOOL:
            begin = at
    return begin


def _is_summary(turn: Turn, message: Message) -> bool:
    return turn.compression is not None and message.seq == turn.compression.from_seq


def _is_request(message: Message) -> bool:
    return message.role is Role.USER and message.origin is Origin.USER
