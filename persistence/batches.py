"""Make a batch and fill it with its items.

A batch is `filling` while its items are stored, or queued again by a resume; its items start once it is sealed. So a
submitter that dies has spent nothing, and whoever submits the same again goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from persistence import ids, submission
from persistence.database import Database, Transaction
from persistence.errors import DuplicateBatch, NotFound, Refused
from persistence.records.batch import Batch, BatchStatus, Item, Order
from persistence.records.message import Json, block_to_json, dumps
from persistence.records.text import clean

COLUMNS = "id, status, size, resumes, interrupt_requested_at IS NOT NULL AS is_interrupted"

_KNOWN = f"""
SELECT {COLUMNS}, request_hash, caps_asked FROM batches
WHERE tenant_id = %(tenant)s AND idempotency_key = %(key)s"""

_NEWEST_OF_REQUEST = f"""
SELECT {COLUMNS}, idempotency_key, (SELECT count(*) FROM batches b
  WHERE b.tenant_id = %(tenant)s AND b.request_hash = %(hash)s) AS known
FROM batches WHERE tenant_id = %(tenant)s AND request_hash = %(hash)s AND idempotency_key LIKE 'items:%%'
ORDER BY created_at DESC, id DESC LIMIT 1"""

_MAKE = f"""
WITH batch AS (
  INSERT INTO batches (id, tenant_id, agent, name, idempotency_key, request_hash, size, max_tokens_total, max_cost_usd,
    caps_asked, event_seq)
  VALUES (%(id)s, %(tenant)s, %(agent)s, %(name)s, %(key)s, %(hash)s, %(size)s, %(tokens)s, %(cost)s,
    %(caps)s, 1)
  ON CONFLICT ON CONSTRAINT batches_idempotency_key DO NOTHING RETURNING {COLUMNS}
), told AS (
  INSERT INTO batch_events (batch_id, seq, type, payload)
  SELECT id, 1, 'batch.submitted', json_build_object('items', size) FROM batch
)
SELECT * FROM batch"""

_LOCK_SESSIONS = """
SELECT id FROM sessions WHERE id = ANY (%(ids)s::uuid[]) AND tenant_id = %(tenant)s ORDER BY id FOR UPDATE"""

# The sessions are checked at the end of the statement, when both are there.
_ADD = """
WITH given AS (
  SELECT * FROM json_to_recordset(%(items)s::json) AS i (id uuid, session_id uuid, is_new_session bool, n int,
    custom_id text, agent_id text, agent text, prompt text, input json, hash text, iterations int, tokens bigint,
    cost numeric, crashes int)
), turn AS (
  INSERT INTO turns (id, session_id, tenant_id, agent_id, input, request_hash, batch_id, custom_id, n, queue, priority,
    iterations_max, max_tokens_total, max_cost_usd, max_crashes, awaits_allotment, event_seq, created_at)
  SELECT id, session_id, %(tenant)s, agent_id, input, hash, %(batch)s, custom_id, n, 'batch', %(priority)s,
    iterations, tokens, cost, crashes, %(is_capped)s, 1, clock_timestamp() FROM given ORDER BY n
  ON CONFLICT DO NOTHING
  RETURNING id
), session AS (
  INSERT INTO sessions (id, tenant_id, system_prompt, workspace_id)
  SELECT session_id, %(tenant)s, prompt, %(workspace)s FROM given JOIN turn USING (id) WHERE is_new_session
)
INSERT INTO events (turn_id, seq, type, payload)
SELECT id, 1, 'turn.submitted', json_build_object('agent', agent, 'session_id', session_id, 'batch_id', %(batch)s::uuid,
  'custom_id', custom_id) FROM given JOIN turn USING (id)"""

_SEAL = """
WITH sealed AS (
  UPDATE batches SET status = 'running', sealed_at = now(), event_seq = event_seq + 1
  WHERE id = %(id)s AND status = 'filling' AND (SELECT count(*) FROM turns t WHERE t.batch_id = batches.id) >= size
  RETURNING id, event_seq, resumes
)
INSERT INTO batch_events (batch_id, seq, type, payload)
SELECT id, event_seq, 'batch.sealed', json_build_object('items', %(items)s::int, 'resumes', resumes) FROM sealed RETURNING batch_id"""


def submitted(database: Database, order: Order) -> Batch:
    """The batch that stands for an order: the known one, or a new one that is to be filled and sealed.

    Raises DuplicateBatch for a key that stands for other items, Refused for one that was stopped before it was filled.
    """
    if order.key is not None and clean(order.key) != order.key:
        raise Refused("the idempotency key has characters that no text may have: use letters and digits")
    key = order.key or _key_of(database, order)
    params = {"tenant": order.tenant_id, "key": key}
    row = database.one_or_none(_KNOWN, params)
    if row is None:
        made = database.one_or_none(
            _MAKE,
            params
            | {
                "id": ids.new_id(),
                "agent": order.agent,
                "name": None if order.name is None else clean(order.name),
                "hash": order.request_hash,
                "size": len(order.items),
                "tokens": order.max_tokens,
                "cost": order.max_cost_usd,
                "caps": order.caps,
            },
        )
        if made is not None:
            return Batch.from_row(made, is_new=True)
        row = database.one(_KNOWN, params)  # somebody else has made it at the same instant
    if row["request_hash"] != order.request_hash:
        raise DuplicateBatch(
            f"the idempotency key {key!r} already stands for batch {row['id']}, which has other items or settings: use a"
            " new key"
        )
    if row["caps_asked"] not in (None, order.caps):
        raise Refused(
            f"batch {row['id']} has these very items and other caps for all of them together: submit it as it was, and"
            f" raise them with `perdure batch resume {row['id']} --max-cost USD` (--max-tokens N) once they end any"
        )
    if row["status"] != BatchStatus.FILLING and row["size"] < len(order.items):
        raise Refused(
            f"batch {row['id']} was interrupted before all of its items were stored: submit them with --again or a new key"
        )
    return Batch.from_row(row)


def _key_of(database: Database, order: Order) -> str:
    """The key of the newest batch of these items, or the next one's where that has ended and another is asked for."""
    params = {"tenant": order.tenant_id, "hash": order.request_hash}
    newest = database.one_or_none(_NEWEST_OF_REQUEST, params)
    if newest is None:
        return f"items:{order.request_hash}"
    if order.is_again and BatchStatus(newest["status"]).is_ending:
        return f"items:{order.request_hash}:{newest['known'] + 1}"
    return newest["idempotency_key"]


def missing(database: Database, batch_id: UUID, items: Sequence[Item]) -> list[Item]:
    """Those of the items that are not stored yet."""
    rows = database.rows("SELECT n FROM turns WHERE batch_id = %(id)s", {"id": batch_id})
    stored = {r["n"] for r in rows}
    return [item for item in items if item.n not in stored]


def unknown_sessions(database: Database, order: Order) -> set[UUID]:
    """The sessions that items want to go on in and that there are not."""
    wanted = {item.session_id for item in order.items if item.session_id is not None}
    rows = database.rows(
        "SELECT id FROM sessions WHERE id = ANY (%(ids)s::uuid[]) AND tenant_id = %(tenant)s",
        {"ids": list(wanted), "tenant": order.tenant_id},
    )
    return wanted - {r["id"] for r in rows}


def add(database: Database, batch_id: UUID, order: Order, items: Sequence[Item]) -> bool:
    """Store some of the items, in one transaction; what is there already is left as it is.

    False when the batch is not being filled any more: somebody else has sealed or interrupted it. Raises NotFound for a
    session that is gone.
    """
    sessions = sorted({item.session_id for item in items if item.session_id is not None})
    with database.transaction() as transaction:
        if not is_filling(transaction, batch_id):
            return False
        if sessions:
            found = transaction.rows(_LOCK_SESSIONS, {"ids": sessions, "tenant": order.tenant_id})
            if len(found) < len(sessions):
                raise NotFound("a session that an item goes on in is gone: submit the file again to see which")
        for agent_id, agent in {item.agent_id: item.agent for item in items}.items():
            submission.store_agent(transaction, agent, agent_id)
        transaction.rows(
            _ADD,
            {
                "items": dumps([_item_row(item, order.priority) for item in items]),
                "batch": batch_id,
                "tenant": order.tenant_id,
                "priority": order.priority,
                "is_capped": order.is_capped,
                "workspace": order.workspace_id,
            },
        )
        return True


def is_filling(transaction: Transaction, batch_id: UUID) -> bool:
    """Whether the batch is being filled; if so, it stays so until the transaction ends."""
    return bool(
        transaction.rows("SELECT 1 FROM batches WHERE id = %(id)s AND status = 'filling' FOR SHARE", {"id": batch_id})
    )


def seal(database: Database, batch_id: UUID, *, items: int) -> bool:
    """Let the batch start, or go on: `items` are those stored or queued for it. False when it was not being filled.

    Raises Refused while some of its items are not stored.
    """
    if database.rows(_SEAL, {"id": batch_id, "items": items}):
        return True
    row = database.one(f"SELECT {COLUMNS} FROM batches WHERE id = %(id)s", {"id": batch_id})
    if row["status"] == BatchStatus.FILLING:
        raise Refused(f"batch {batch_id} is not stored as a whole yet: submit its file once more")
    return False


def _item_row(item: Item, priority: int) -> Json:
    agent, is_new = item.agent, item.session_id is None
    return {
        "id": str(ids.new_id()),
        "session_id": str(ids.new_id() if is_new else item.session_id),
        "is_new_session": is_new,
        "n": item.n,
        "custom_id": item.custom_id,
        "agent_id": item.agent_id,
        "agent": clean(agent.name),
        "prompt": clean(agent.system_prompt),
        "input": [block_to_json(b) for b in item.content],
        "hash": item.hash(priority),
        "iterations": agent.iterations,
        "tokens": agent.max_tokens_total,
        "cost": None if agent.max_cost_usd is None else str(submission.cost_cap(agent)),
        "crashes": agent.max_crashes,
    }
