"""Start a turn."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from psycopg.errors import DeadlockDetected

from persistence import ids, inbox
from persistence.database import Database, Row, Transaction
from persistence.errors import DatabaseUnavailable, DuplicateTurn, NotFound, Refused
from persistence.interrupts import stamp
from persistence.records.agent import AgentSettings, OnBusy
from persistence.records.batch import request_hash
from persistence.records.message import Block, Image, Text, content_to_json, dumps
from persistence.records.status import TurnStatus
from persistence.records.text import clean

DEFAULT_TENANT = UUID("00000000-0000-0000-0000-000000000001")


@dataclass(frozen=True, slots=True)
class Request:
    """What starts a turn: words, or words and pictures. The same key with the same content is the same turn."""

    prompt: str | tuple[Block, ...]
    agent: AgentSettings
    session_id: UUID | None = None
    idempotency_key: str | None = None
    priority: int = 0
    queue: str = "interactive"
    tenant_id: UUID = DEFAULT_TENANT
    workspace_id: str | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (Text(clean(self.prompt)),) if isinstance(self.prompt, str) else self.prompt

    @property
    def content(self) -> str:
        return content_to_json(self.blocks)

    @property
    def text(self) -> str:
        """The words of it."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n\n".join(b.text for b in self.prompt if isinstance(b, Text))

    @property
    def has_images(self) -> bool:
        return not isinstance(self.prompt, str) and any(isinstance(b, Image) for b in self.prompt)

    @property
    def hash(self) -> str:
        """Of what the caller asked for; the agent's settings count, so a changed configuration is another request."""
        return request_hash(self.blocks, self.agent.digest, self.session_id, self.queue, self.priority)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The turn that stands for a request. `is_new` is False where the key was known or the request became a steer.

    `interrupts` is the live turn that was asked to end for it: it will, and sooner if it is told.
    """

    turn_id: UUID
    session_id: UUID
    status: TurnStatus
    queue: str
    is_new: bool
    interrupts: UUID | None = None


_KNOWN = """
SELECT id, session_id, status, queue, request_hash FROM turns
WHERE tenant_id = %(tenant)s AND idempotency_key = %(key)s"""

# A request that became words for a live turn keeps its key beside them.
_SAID = """
SELECT t.id, t.session_id, t.status, t.queue, i.payload ->> 'request_hash' AS request_hash
FROM turns t JOIN inbox i ON i.turn_id = t.id
WHERE t.session_id = %(session)s AND i.payload ->> 'idempotency_key' = %(key)s"""

_LIVE = """
SELECT id, session_id, status, queue, started_at FROM turns
WHERE session_id = %(session)s AND exit_reason IS NULL ORDER BY started_at NULLS LAST, created_at LIMIT 1"""

# Not now(), which is when the transaction began: turns of a session are in the order in which they got its lock.
_INSERT = """
WITH turn AS (
  INSERT INTO turns (id, session_id, tenant_id, agent_id, input, request_hash, idempotency_key, queue, priority,
    iterations_max, max_tokens_total, max_cost_usd, max_crashes, event_seq, created_at)
  VALUES (%(id)s, %(session)s, %(tenant)s, %(agent)s, %(input)s::json, %(hash)s, %(key)s, %(queue)s, %(priority)s,
    %(iterations)s, %(tokens)s, %(cost)s, %(crashes)s, 1, clock_timestamp())
  ON CONFLICT ON CONSTRAINT turns_idempotency_key DO NOTHING
  RETURNING id, session_id, status, queue
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, 1, 'turn.submitted', json_build_object('agent', %(name)s::text, 'session_id', session_id) FROM turn
)
SELECT * FROM turn"""


def submit(database: Database, request: Request) -> Submitted:
    """Store the turn. Once this has returned, the turn reaches an ending on its own.

    Raises NotFound for an unknown session, DuplicateTurn for a key that stands for another request, Refused where the
    session is busy and the agent's `on_busy` says reject.
    """
    while True:
        try:
            return _submit(database, request)
        except DatabaseUnavailable as error:
            # A claim has the turn's row and wants its session's, we the other way round; nothing is stored yet.
            if not isinstance(error.__cause__, DeadlockDetected):
                raise


def _submit(database: Database, request: Request) -> Submitted:
    if not request.text.strip() and not request.has_images:
        raise Refused("the prompt is empty: say what the turn should do")
    if request.idempotency_key is not None and clean(request.idempotency_key) != request.idempotency_key:
        raise Refused("the idempotency key has characters that no text may have: use letters and digits")
    with database.transaction() as transaction:
        known = _known(transaction, request)
        if known is not None:
            return known
        session_id = _session(transaction, request)
        if request.session_id is None:
            return _insert(transaction, request, session_id, None)
        busy = transaction.one_or_none(_LIVE, {"session": session_id})
        if busy is not None and request.agent.on_busy is OnBusy.REJECT:
            raise Refused(f"session {session_id} is busy with turn {busy['id']}: wait for it, or interrupt it")
        steered = _steered(transaction, request, busy) if request.agent.on_busy is OnBusy.STEER else None
        return steered or _insert(transaction, request, session_id, busy)


def _known(transaction: Transaction, request: Request) -> Submitted | None:
    if request.idempotency_key is None:
        return None
    row = transaction.one_or_none(_KNOWN, {"tenant": request.tenant_id, "key": request.idempotency_key})
    return None if row is None else _the_same(request, row)


def _the_same(request: Request, row: Row) -> Submitted:
    """What the key stands for. Raises DuplicateTurn where that was another request."""
    if row["request_hash"] != request.hash:
        raise DuplicateTurn(
            f"the idempotency key {request.idempotency_key!r} already stands for turn {row['id']}, which was another"
            " request: use a new key"
        )
    return Submitted(row["id"], row["session_id"], TurnStatus(row["status"]), row["queue"], is_new=False)


def _steered(transaction: Transaction, request: Request, busy: Row | None) -> Submitted | None:
    """The live turn that the request became words for, just now or under the same key before; None if there is none."""
    key = request.idempotency_key
    if key is not None:
        row = transaction.one_or_none(_SAID, {"session": request.session_id, "key": key})
        if row is not None:
            return _the_same(request, row)
    if busy is None or busy["started_at"] is None:
        return None
    if request.has_images:
        raise Refused(f"turn {busy['id']} is under way and takes words alone: wait for it, or leave the pictures out")
    try:
        inbox.steer(transaction, busy["id"], request.text, idempotency_key=key, request_hash=request.hash)
    except Refused:  # it has ended since we looked
        return None
    return Submitted(busy["id"], busy["session_id"], TurnStatus(busy["status"]), busy["queue"], is_new=False)


def _session(transaction: Transaction, request: Request) -> UUID:
    """The session's id, its row locked, so that two submits to one session are answered one after the other."""
    if request.session_id is None:
        session_id = ids.new_id()
        transaction.rows(
            "INSERT INTO sessions (id, tenant_id, system_prompt, workspace_id)"
            " VALUES (%(id)s, %(tenant)s, %(prompt)s, %(workspace)s)",
            {
                "id": session_id,
                "tenant": request.tenant_id,
                "prompt": clean(request.agent.system_prompt),
                "workspace": request.workspace_id,
            },
        )
        return session_id
    found = transaction.one_or_none(
        "SELECT id FROM sessions WHERE id = %(id)s AND tenant_id = %(tenant)s FOR UPDATE",
        {"id": request.session_id, "tenant": request.tenant_id},
    )
    if found is None:
        raise NotFound(f"there is no session {request.session_id}; leave it out to start a new one")
    return found["id"]


def _insert(transaction: Transaction, request: Request, session_id: UUID, busy: Row | None) -> Submitted:
    agent = request.agent
    store_agent(transaction, agent, agent.digest)
    row = transaction.one_or_none(
        _INSERT,
        {
            "id": ids.new_id(),
            "session": session_id,
            "tenant": request.tenant_id,
            "agent": agent.digest,
            "name": clean(agent.name),
            "input": request.content,
            "hash": request.hash,
            "key": request.idempotency_key,
            "queue": request.queue,
            "priority": request.priority,
            "iterations": agent.iterations,
            "tokens": agent.max_tokens_total,
            "cost": cost_cap(agent),
            "crashes": agent.max_crashes,
        },
    )
    if row is None:  # the same key was committed between our look and our insert
        known = _known(transaction, request)
        assert known is not None
        if request.session_id is None:
            transaction.rows("DELETE FROM sessions WHERE id = %(id)s", {"id": session_id})
        return known
    interrupts = busy["id"] if busy is not None and agent.on_busy is OnBusy.INTERRUPT else None
    if interrupts is not None:  # together with the turn: who asks again under the same key finds both done
        stamp(transaction, interrupts)
    return Submitted(row["id"], row["session_id"], TurnStatus(row["status"]), row["queue"], True, interrupts)


def store_agent(transaction: Transaction, agent: AgentSettings, digest: str) -> None:
    """Keep the settings of a turn's agent under their digest."""
    settings = agent.to_json()
    transaction.rows(
        "INSERT INTO agents (id, name, settings) VALUES (%(id)s, %(name)s, %(settings)s::json) ON CONFLICT DO NOTHING",
        {"id": digest, "name": settings["name"], "settings": dumps(settings)},
    )


def cost_cap(agent: AgentSettings) -> Decimal | None:
    """As it is stored: the number that was written, not its nearest binary one."""
    return None if agent.max_cost_usd is None else Decimal(str(agent.max_cost_usd))
