"""What our blocks keep of the items that one provider issued, so that it gets each back as it came.

Beside the neutral form of a block stands, in `native`, the rest of what the provider said:

    item    the item without what the neutral form says; for reasoning and for types that we do not know, all of it
    part    of a message: one part of its content, without its words. Parts of the same `item` in a row are one message
    after   the id of the reasoning with which the item was issued: without that one, the API refuses it by its id

`item` is also how a block is known to come from this API: a provider's name may have stood for another one before.
"""

from __future__ import annotations

from typing import Any, Final

from persistence.records.message import Block, Call, Json, Native, Opaque, Text, Thinking

ITEM: Final = "item"
PART: Final = "part"
AFTER: Final = "after"

# In which field each part of a message holds its words.
WORDS: Final = {"output_text": "text", "refusal": "refusal"}


def native_of(block: Block, provider: str) -> Json | None:
    """What `provider` said of this block beside its neutral form, if it was this provider and this API that issued it."""
    match block:
        case Text(native=Native(provider=issuer, data=data)) | Call(native=Native(provider=issuer, data=data)):
            pass
        case Thinking(native=Native(provider=issuer, data=data)) | Opaque(native=Native(provider=issuer, data=data)):
            pass
        case _:
            return None
    return data if issuer == provider and ITEM in data else None


def without(data: Json, *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}
