"""Which thinking of a history may go back to its model. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from persistence.records.message import Message, Thinking
from persistence.records.turn import THINKING_REFUSED_UP_TO, Turn

# Models for which a thinking block counts only while system prompt, tools and all messages before it are unchanged, and
# which refuse it otherwise: https://platform.claude.com/docs/en/build-with-claude/extended-thinking
_BINDS_TO_PREFIX = re.compile(r"claude-(fable|mythos)-")

# Beyond every message: where thinking is refused up to this one, none of the session is sent any more.
EVERY_MESSAGE = 2**53

_bare: WeakKeyDictionary[Message, Message] = WeakKeyDictionary()


def binds_to_prefix(model: str) -> bool:
    """Whether the model takes its thinking back only while everything before it is unchanged."""
    return _BINDS_TO_PREFIX.search(model) is not None


def sent_messages(turn: Turn, model: str) -> Sequence[Message]:
    """The turn's messages as `model` may be shown them.

    A compression changes what stands before the messages after it. Where the model binds thinking to that, those that
    were there already go without their thinking, all of it, which is allowed; so do those whose thinking was refused. Any
    other message goes to the byte. The same messages are returned every time, so that an encoder knows them again.
    """
    refused = turn.counters.remedies.get(THINKING_REFUSED_UP_TO, 0)
    compression = turn.compression
    old = range(0)
    if compression is not None and binds_to_prefix(model):
        old = range(compression.to_seq + 1, compression.weight.seq + 1)
    if not refused and not old:
        return turn.messages
    return [_without_thinking(m) if m.seq in old or m.seq <= refused else m for m in turn.messages]


def has_thinking(message: Message) -> bool:
    return any(isinstance(block, Thinking) for block in message.content)


def _without_thinking(message: Message) -> Message:
    bare = _bare.get(message)
    if bare is None:
        content = tuple(b for b in message.content if not isinstance(b, Thinking))
        bare = message if len(content) == len(message.content) else replace(message, content=content)
        if bare is not message:  # a key must not be kept alive by its own value
            _bare[message] = bare
    return bare
