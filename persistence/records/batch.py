"""A batch: many turns made from one file, its items. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Any
from uuid import UUID

from persistence.records.agent import AgentSettings
from persistence.records.message import Block, block_to_json, dumps


class BatchStatus(StrEnum):
    """Until it is filled none of its items starts. Of its endings, `interrupted` is that of one stopped on request."""

    FILLING = "filling"
    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_FAILURES = "completed_with_failures"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_ending(self) -> bool:
        return self not in (BatchStatus.FILLING, BatchStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class Batch:
    """The row as those see it who move it on. `is_new` for whoever has just made it."""

    id: UUID
    status: BatchStatus
    size: int
    resumes: int
    is_interrupted: bool
    is_new: bool = False

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, is_new: bool = False) -> Batch:
        return cls(row["id"], BatchStatus(row["status"]), row["size"], row["resumes"], row["is_interrupted"], is_new)


@dataclass(frozen=True, slots=True)
class Item:
    """One turn to be. `n` is its line in the file, from 1. `agent_id` is the digest of its agent, made once for many."""

    n: int
    custom_id: str
    content: tuple[Block, ...]
    agent: AgentSettings
    agent_id: str
    session_id: UUID | None = None

    def hash(self, priority: int) -> str:
        """Of what is asked for, as that of a turn that is submitted alone (`submission.Request.hash`)."""
        return request_hash(self.content, self.agent_id, self.session_id, "batch", priority)


def request_hash(content: Sequence[Block], agent_id: str, session_id: UUID | None, queue: str, priority: int) -> str:
    """The agent's settings count, so a changed configuration is another request."""
    asked = [dumps([block_to_json(b) for b in content]), agent_id, str(session_id or ""), queue, priority]
    return hashlib.sha256(dumps(asked).encode()).hexdigest()


@dataclass(frozen=True)
class Order:
    """All that a batch is made of. The same items under the same key are the same batch.

    Without a `key` their own hash is the key; `is_again` asks for another batch of items whose last one has ended.
    `max_tokens` and `max_cost_usd` cap all items together; each then needs a cap of its own, and takes that out of it.
    """

    items: Sequence[Item]
    agent: str
    tenant_id: UUID
    name: str | None = None
    key: str | None = None
    is_again: bool = False
    priority: int = 0
    workspace_id: str | None = None
    max_tokens: int | None = None
    max_cost_usd: Decimal | None = None

    @property
    def is_capped(self) -> bool:
        return self.max_tokens is not None or self.max_cost_usd is not None

    @property
    def caps(self) -> str:
        """Both, to be compared."""
        cost = None if self.max_cost_usd is None else str(self.max_cost_usd.normalize())
        return dumps([self.max_tokens, cost])

    @cached_property
    def hashes(self) -> Sequence[str]:
        """Those of the items."""
        return [item.hash(self.priority) for item in self.items]

    @cached_property
    def request_hash(self) -> str:
        """Of every item, by its place and id as well as by what it asks: two of the same words are two."""
        asked = [[item.n, item.custom_id, hash_] for item, hash_ in zip(self.items, self.hashes, strict=True)]
        return hashlib.sha256(dumps(asked).encode()).hexdigest()
