"""The toolset "history": the session's whole past, also what a summary stands for now and what was cut off a result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestration.ports import Past, ToolContext
from orchestration.tools import workspace
from orchestration.tools.definition import ToolError, tool
from orchestration.tools.full_texts import FOLDER
from orchestration.transcript import WHOLE, line
from persistence.errors import Refused

# One page, in characters, and the messages that may be needed for it.
_PAGE = 8_000
_MESSAGES = 50
# What the line takes that says how to go on.
_LAST_LINE = 120
_CHUNK = 1 << 16


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
    room = _Room.of(ctx)
    for message in messages:
        text = line(message, WHOLE)
        start = min(offset, len(text)) if message is messages[0] else 0
        if room.is_used_up:
            return "\n".join([*shown, f"(Go on with from_seq={message.seq}.)"])
        shown.append(room.take(text[start:]))
        if start + len(shown[-1]) < len(text):
            return "\n".join([*shown, f"(Go on with from_seq={message.seq}, offset={start + len(shown[-1])}.)"])
    more = f"(Go on with from_seq={messages[-1].seq + 1}.)" if len(messages) == _MESSAGES else "(That is all.)"
    return "\n".join([*shown, more])


@tool(effect="reads", timeout_s=60)
def read_result(
    ctx: ToolContext,
    path: Annotated[str, Field(description="Where the full text is, as the shortened result says.")],
    offset: Annotated[int, Field(ge=0, description="Where to go on in it, in characters.")] = 0,
) -> str:
    """Read the full text of a result that was too long and shown shortened, a page at a time."""
    names = workspace.split(path)
    if names[:-1] != (FOLDER,):
        raise ToolError(f"{path!r} is no result that was kept: they are in {FOLDER}/.")
    with (
        workspace.opened(ctx.workspace, names) as descriptor,
        open(descriptor, encoding="utf-8", closefd=False) as text,
    ):
        left = offset
        while left and (skipped := len(text.read(min(left, _CHUNK)))):
            left -= skipped
        page = text.read(_PAGE)
        shown = _Room.of(ctx).take(page)
        if not shown:
            raise ToolError(f"{path!r} has no more than {offset - left} characters.")
        is_all = len(shown) == len(page) and not text.read(1)
    return shown + ("\n(That is all.)" if is_all else f"\n(Go on with offset={offset + len(shown)}.)")


class _Room:
    """What is left of a page: no more than a result may have without being cut."""

    def __init__(self, chars: int, bytes_: int) -> None:
        self._chars = chars
        self._bytes = bytes_

    @classmethod
    def of(cls, ctx: ToolContext) -> _Room:
        return cls(_PAGE, 4 * _PAGE if ctx.result_bytes is None else ctx.result_bytes - _LAST_LINE)

    @property
    def is_used_up(self) -> bool:
        return self._chars <= 0 or self._bytes <= 0

    def take(self, text: str) -> str:
        """The start of `text` that there is room for."""
        shown = text[: self._chars].encode()[: max(self._bytes, 0)].decode(errors="ignore")
        self._chars -= len(shown)
        # A character that did not fit ends the page, too.
        self._bytes = self._bytes - len(shown.encode()) if len(shown) == len(text) else 0
        return shown


def _past(ctx: ToolContext) -> Past:
    if ctx.past is None:
        raise ToolError("There is no history here to read.")
    return ctx.past
