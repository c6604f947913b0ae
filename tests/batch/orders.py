"""Batches made by hand, in one line each."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from persistence import batches
from persistence.database import Database
from persistence.records.batch import Batch, Item, Order
from persistence.records.message import Text
from persistence.submission import DEFAULT_TENANT
from tests.support.workbench import Bench


def items(bench: Bench, *prompts: str, session_id: UUID | None = None, **settings: Any) -> list[Item]:
    """An item a prompt, called by their lines."""
    agent = bench.agent(**settings)
    return [Item(n, str(n), (Text(prompt),), agent, agent.digest, session_id) for n, prompt in enumerate(prompts, 1)]


def order(of: list[Item], **how: Any) -> Order:
    return Order(of, "bench", DEFAULT_TENANT, **how)


def submit(bench: Bench, of: list[Item], **how: Any) -> Batch:
    """A batch, filled and sealed; its items are looked after by the bench."""
    wanted = order(of, **how)
    batch = batches.submitted(bench.database, wanted)
    batches.add(bench.database, batch.id, wanted, of)
    batches.seal(bench.database, batch.id, items=len(of))
    for turn_id in turn_ids(bench.database, batch.id):
        bench.adopt(turn_id)
    return batch


def turn_ids(database: Database, batch_id: UUID) -> list[UUID]:
    """Those of the items, in the order of the file."""
    rows = database.rows("SELECT id FROM turns WHERE batch_id = %(id)s ORDER BY n", {"id": batch_id})
    return [r["id"] for r in rows]


def told(database: Database, batch_id: UUID) -> list[str]:
    """The types of the batch's own events."""
    rows = database.rows("SELECT type FROM batch_events WHERE batch_id = %(id)s ORDER BY seq", {"id": batch_id})
    return [r["type"] for r in rows]
