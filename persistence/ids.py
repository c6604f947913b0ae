"""Ids: UUIDv7, so that new rows land side by side in every index. Nothing is ordered or aged by an id."""

from __future__ import annotations

from uuid import UUID

import uuid_utils


def new_id() -> UUID:
    return UUID(int=uuid_utils.uuid7().int)


def parse_id(text: str, what: str = "turn") -> UUID:
    """The id that `text` spells. Raises ValueError with a sentence for a person."""
    try:
        return UUID(text)
    except ValueError:
        listing = "perdure batch list" if what == "batch" else "perdure list"
        raise ValueError(
            f"{text!r} is not a {what} id; an id looks like 0198c0de-7a11-7c3e-9a52-3f2b8f6a1c04 (see `{listing}`)"
        ) from None
