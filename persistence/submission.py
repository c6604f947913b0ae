"""Start a turn, and start one that has ended again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from psycopg.errors import DeadlockDetected

from persistence import ids, inbox
from persistence.database import Database, Row, Transaction
from persistence.errors import DatabaseUnavailable, DuplicateTurn, NotFound, Refused
from persistence.interrupts import stamp
from persistence.records.agent import AgentSettings, OnBusy
from persistence.records.message import Block, Image, Text, content_to_json, dumps
from persistence.records.status import CAPS, ExitReason, TurnStatus
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
    def content(self) -> str:
        return content_to_json((Text(clean(self.prompt)),) if isinstance(self.prompt, str) else self.prompt)

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
        asked = [self.content, self.agent.digest, str(self.session_id or ""), self.queue, self.priority]
        return hashlib.sha256(dumps(asked).encode()).hexdigest()


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
    agent, settings = request.agent, request.agent.to_json()
    transaction.rows(
        "INSERT INTO agents (id, name, settings) VALUES (%(id)s, %(name)s, %(settings)s::json) ON CONFLICT DO NOTHING",
        {"id": agent.digest, "name": settings["name"], "settings": dumps(settings)},
    )
    row = transaction.one_or_none(
        _INSERT,
        {
            "id": ids.new_id(),
            "session": session_id,
            "tenant": request.tenant_id,
            "agent": agent.digest,
            "name": settings["name"],
            "input": request.content,
            "hash": request.hash,
            "key": request.idempotency_key,
            "queue": request.queue,
            "priority": request.priority,
            "iterations": agent.iterations,
            "tokens": agent.max_tokens_total,
            "cost": None if agent.max_cost_usd is None else Decimal(str(agent.max_cost_usd)),
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


# As a submit does: so that no turn joins the session between the look for one and the resume.
_LOCK_SESSION = """
SELECT FROM sessions WHERE id = (SELECT session_id FROM turns WHERE id = %(id)s) FOR UPDATE"""

_ENDED = """
SELECT t.id, t.session_id, t.queue, t.status, t.exit_reason, t.parent_turn_id, t.iterations_max, t.iterations_used,
  t.max_tokens_total, t.max_cost_usd, t.started_at, t.grace_used, t.remedies,
  EXISTS (SELECT FROM turns o WHERE o.session_id = t.session_id AND o.id <> t.id
    AND (o.created_at, o.id) > (t.created_at, t.id)) AS has_successor
FROM turns t WHERE t.id = %(id)s FOR UPDATE"""

_NEWEST = """
SELECT role, origin, iteration FROM messages
WHERE session_id = %(session)s AND turn_id = %(id)s ORDER BY seq DESC LIMIT 1"""

_RESUME = """
WITH turn AS (
  UPDATE turns SET status = 'queued', exit_reason = NULL, ended_at = NULL, result = NULL, dispatched_at = NULL,
    interrupt_requested_at = NULL, resumes = resumes + 1, fencing_token = fencing_token + 1, attempts = 0,
    last_error = NULL, retry_after_s = NULL, grace_used = %(grace_used)s, remedies = %(remedies)s::json,
    model_index = 0, crash_count = 0, crash_streak = 0, is_suspect = false, pending = NULL, pending_since = NULL,
    last_seq = last_seq + %(notices)s,
    iterations_max = %(iterations)s, max_tokens_total = %(tokens)s, max_cost_usd = %(cost)s, event_seq = event_seq + 1,
    deadline = CASE WHEN deadline IS NOT NULL THEN now() +
      (SELECT make_interval(secs => (settings ->> 'deadline_s')::float) FROM agents a WHERE a.id = turns.agent_id) END
  WHERE id = %(id)s RETURNING id, session_id, event_seq, last_seq, resumes
), noticed AS (
  INSERT INTO messages (session_id, seq, turn_id, iteration, role, origin, content)
  SELECT session_id, last_seq, id, %(iteration)s, 'user', 'notice', %(notice)s::json FROM turn WHERE %(notices)s = 1
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.resumed', json_build_object('resumes', resumes) FROM turn
), given_up AS (
  -- A turn has one Celery result, that of its newest run: one of an earlier run would never find its ending again.
  UPDATE deliveries SET state = 'given_up' FROM turn
  WHERE deliveries.turn_id = turn.id AND kind = 'celery_result' AND state <> 'given_up'
)
SELECT id FROM turn"""


def resume(
    database: Database, turn_id: UUID, *, notice: str, iterations: int = 0, tokens: int = 0, cost: Decimal = Decimal(0)
) -> Submitted:
    """Queue an ended turn again, with its caps raised by what is given.

    Where the history ends in words of the model, `notice` follows them: without it they would read as its final answer.
    So it does where more iterations take back what a notice said of the last one. Only they allow another grace call.

    Raises NotFound, or Refused (with what to do) unless the turn is incomplete, interrupted or failed, the newest of
    its session and no child, and any cap that ended it is raised.
    """
    with database.transaction() as transaction:
        transaction.rows(_LOCK_SESSION, {"id": turn_id})
        row = transaction.one_or_none(_ENDED, {"id": turn_id})
        if row is None:
            raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
        _refuse_resume(row, {"iterations": iterations, "tokens": tokens, "cost": cost})
        newest = transaction.one_or_none(_NEWEST, {"session": row["session_id"], "id": turn_id})
        transaction.rows(
            _RESUME,
            {
                "notices": int(newest is not None and _needs_notice(newest, iterations)),
                "notice": content_to_json((Text(notice),)),
                "iteration": 0 if newest is None else newest["iteration"],
                "id": turn_id,
                "grace_used": row["grace_used"] and not iterations,
                "remedies": dumps({} if iterations else _grace_alone(row["remedies"])),
                "iterations": row["iterations_max"] + iterations,
                "tokens": None if row["max_tokens_total"] is None else row["max_tokens_total"] + tokens,
                "cost": None if row["max_cost_usd"] is None else row["max_cost_usd"] + cost,
            },
        )
    return Submitted(row["id"], row["session_id"], TurnStatus.QUEUED, row["queue"], is_new=False)


def _needs_notice(newest: Row, iterations: int) -> bool:
    # A notice before the first answer is the request's context.
    is_of_ours = newest["origin"] == "notice" and newest["iteration"] > 0
    return newest["role"] == "assistant" or (is_of_ours and iterations > 0)


def _grace_alone(remedies: dict[str, int]) -> dict[str, int]:
    """Of the counters of remedies only that of the grace call: what was granted once is not granted again."""
    return {name: n for name, n in remedies.items() if name == "grace_answered"}


def _refuse_resume(row: Row, given: dict[str, int | Decimal]) -> None:
    turn_id = row["id"]
    if row["exit_reason"] is None:
        raise Refused(f"turn {turn_id} is {row['status']}: only a turn that has ended can be resumed")
    reason = ExitReason(row["exit_reason"])
    if reason.status is TurnStatus.COMPLETED:
        raise Refused(f"turn {turn_id} is completed: send a new turn to session {row['session_id']} instead")
    if row["parent_turn_id"] is not None:
        raise Refused(f"turn {turn_id} is a child of turn {row['parent_turn_id']}: resume that one")
    if row["has_successor"]:
        raise Refused(f"turn {turn_id} is not the newest of its session {row['session_id']}: send a new turn to it")
    cap = CAPS.get(reason)
    if cap is not None and given[cap] <= 0:
        raise Refused(f"turn {turn_id} ended as {reason}: resume it with --{cap} N to raise that cap")
    if any(amount < 0 for amount in given.values()):
        raise Refused("a cap can only be raised: give numbers above 0")
