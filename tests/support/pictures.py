"""Tools that return pictures."""

from __future__ import annotations

from collections.abc import Iterator

from orchestration.tools import Image, Text, ToolContext, image, tool
from tests.support import ledger

TOOLS = "tests.support.pictures"
BYTES = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
# What the next photos meet.
accidents: list[BaseException] = []


@tool(effect="reads")
def photo(ctx: ToolContext) -> Image:
    """Take a photo."""
    if accidents:
        raise accidents.pop()
    return ledger._recorded(ctx, "photo", {}, lambda: image(BYTES))


@tool(effect="once")
def album(ctx: ToolContext, count: int = 2) -> list[Text | Image]:
    """Show an album."""
    shown = (image(BYTES + bytes([n])) for n in range(count))
    return ledger._recorded(ctx, "album", {"count": count}, lambda: [Text("The album:"), *shown])


@tool(effect="reads")
def film(ctx: ToolContext) -> Iterator[object]:
    """Show a film."""
    ledger._recorded(ctx, "film", {}, lambda: None)
    yield "first "
    yield image(BYTES)
    yield "last"


@tool(effect="reads")
def forged(ctx: ToolContext) -> Image:
    """Show what is no picture."""
    return ledger._recorded(ctx, "forged", {}, lambda: Image("image/png", data="aGVsbG8="))
