"""The toolset "history": the session's whole past, also what a summary stands for now."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestration.ports import Past, ToolContext
from orchestration.tools.definition import ToolError, tool
from orchestration.transcript import WHOLE, line
from persistence.errors import Refused

# One page, in characters, and the messages that may be needed for it.
_PAGE = 8_000
_MESSAGES = 50


@tool(effect="reads", timeout_s=60)
def search_history(
    ctx: ToolContext,
    pattern: Annotated[
        str, Field(min_length=1, max_length=300, description="A regular expression; upper and lower case are the same.")
    ],
    after: Annotated[int, Field(ge=0, description="Only messages after this number.")] = 0,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """Search everything that was said in this conversation, also messages that were left out to save room.

    Each hit shows the number of its message; read_history shows the message itself.
    """
    try:
        hits = _past(ctx).search(pattern, after_seq=after, limit=limit + 1)
    except Refused as error:
        raise ToolError(f"{pattern!r} cannot be searched for: {error}.") from error
    if not hits:
        return f"Nothing matches {pattern!r}{f' after message {after}' if after else ''}."
    shown = [f"[{hit.seq}] {hit.role}: … {' '.join(hit.excerpt.split())} …" for hit in hits[:limit]]
    if len(hits) > limit:
        shown.append(f"(There are more: search again with after={hits[limit - 1].seq}.)")
    return "\n".join(shown)


@tool(effect="reads", timeout_s=60)
def read_history(
    ctx: ToolContext,
    from_seq: Annotated[int, Field(ge=1, description="The number of the first message to read.")],
    offset: Annotated[int, Field(ge=0, description="Where to go on in that message, in characters.")] = 0,
) -> str:
    """Read messages of this conversation in full, in order, a page at a time, also those that were left out to save room."""
    messages = _past(ctx).page(from_seq, limit=_MESSAGES)
    if not messages:
        return f"There is no message {from_seq} or later."
    shown: list[str] = []
    room = _PAGE
    for message in messages:
        text = line(message, WHOLE)
        start = min(offset, len(text)) if message is messages[0] else 0
        if room <= 0:
            return "\n".join([*shown, f"(Go on with from_seq={message.seq}.)"])
        shown.append(text[start : start + room])
        if len(text) - start > room:
            return "\n".join([*shown, f"(Go on with from_seq={message.seq}, offset={start + room}.)"])
        room -= len(text) - start
    more = f"(Go on with from_seq={messages[-1].seq + 1}.)" if len(messages) == _MESSAGES else "(That is all.)"
    return "\n".join([*shown, more])


def _past(ctx: ToolContext) -> Past:
    if ctx.past is None:
        raise ToolError("There is no history here to read.")
    return ctx.past
