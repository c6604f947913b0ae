"""The context of a turn among its messages: a notice right after the request, with nothing but its wire form."""

from __future__ import annotations

from collections.abc import Sequence

from persistence.records.message import Json, Message

# In the wire form of that message: what each source gave. And among the turn's counters: that they were asked.
CONTEXT = "context"
GATHERED = "context"


def sources_of(message: Message) -> Sequence[Json] | None:
    """The sources, each with the characters that were sent of it; None for any other message."""
    return message.wire.get(CONTEXT) if message.wire else None
