"""Ids of output items. One says by itself which item of which reply it names, and with which reasoning it was issued.

So nothing has to be remembered to know, when an item comes back, what has to come back with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = re.compile(r"[a-z]+_([0-9a-f]{24})(\d\d)(?:r(\d\d))?")


@dataclass(frozen=True, slots=True)
class ItemId:
    """The `index`th item of a reply; `after` is the index of the reasoning that it was issued with."""

    reply: str
    index: int
    after: int | None

    @property
    def reasoning(self) -> str | None:
        """The id of the reasoning without which this item is refused."""
        return None if self.after is None else make("rs", self.reply, self.after)


def make(prefix: str, reply: str, index: int, after: int | None = None) -> str:
    return f"{prefix}_{reply}{index:02d}" + ("" if after is None else f"r{after:02d}")


def read(item_id: str) -> ItemId | None:
    """What an id says, if it was made here."""
    found = _ID.fullmatch(item_id)
    if found is None:
        return None
    reply, index, after = found.groups()
    return ItemId(reply, int(index), None if after is None else int(after))
