"""Queue a turn that has ended again, from its last checkpoint."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from persistence import batches
from persistence.database import Database, Row
from persistence.errors import NotFound, Refused
from persistence.records.message import Text, content_to_json, dumps
from persistence.records.status import CAPS, ExitReason, TurnStatus
from persistence.records.turn import LEARNED
from persistence.submission import Submitted

# As a submit does: so that no turn joins the session between the look for one and the resume.
_LOCK_SESSION = """
SELECT FROM sessions WHERE id = (SELECT session_id FROM turns WHERE id = %(id)s) FOR UPDATE"""

_ENDED = """
SELECT t.id, t.session_id, t.queue, t.status, t.exit_reason, t.parent_turn_id, t.batch_id, t.iterations_max, t.iterations_used,
  t.max_tokens_total, t.max_cost_usd, t.started_at, t.grace_used, t.remedies, t.model_index,
  EXISTS (SELECT FROM turns o WHERE o.session_id = t.session_id AND o.id <> t.id
    AND (o.created_at, o.id) > (t.created_at, t.id)
    AND NOT coalesce(o.started_at IS NULL AND o.batch_id = %(batch)s, false)) AS has_successor
FROM turns t WHERE t.id = %(id)s FOR UPDATE"""

_NEWEST = """
SELECT role, origin, iteration FROM messages
WHERE session_id = %(session)s AND turn_id = %(id)s ORDER BY seq DESC LIMIT 1"""

_RESUME = """
WITH turn AS (
  UPDATE turns SET status = 'queued', exit_reason = NULL, ended_at = NULL, result = NULL, dispatched_at = NULL,
    interrupt_requested_at = NULL, interrupt_reason = NULL,
    awaits_allotment = EXISTS (SELECT FROM batches b
      WHERE b.id = turns.batch_id AND (b.max_tokens_total IS NOT NULL OR b.max_cost_usd IS NOT NULL)),
    resumes = resumes + 1, fencing_token = fencing_token + 1, attempts = 0,
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
    database: Database,
    turn_id: UUID,
    *,
    notice: str,
    iterations: int = 0,
    tokens: int = 0,
    cost: Decimal = Decimal(0),
    batch_id: UUID | None = None,
) -> Submitted:
    """Queue an ended turn again, with its caps raised by what is given.

    Where the history ends in words of the model, `notice` follows them: without it they would read as its final answer.
    So it does where more iterations take back what a notice said of the last one. Only they allow another grace call.
    An item resumes through its batch alone, which is being filled again: `batch_id` says that this is so.

    Raises NotFound, or Refused (with what to do) unless the turn is incomplete, interrupted or failed, the newest of
    its session and no child, and any cap that ended it is raised.
    """
    with database.transaction() as transaction:
        if batch_id is not None and not batches.is_filling(transaction, batch_id):
            raise Refused(f"batch {batch_id} was interrupted meanwhile: resume it once more")
        transaction.rows(_LOCK_SESSION, {"id": turn_id})
        row = transaction.one_or_none(_ENDED, {"id": turn_id, "batch": batch_id})
        if row is None:
            raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
        if row["batch_id"] != batch_id:
            of = row["batch_id"]
            raise Refused(f"turn {turn_id} is an item of batch {of}: resume that with `perdure batch resume {of}`")
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
                "remedies": dumps(_kept(row, has_grace=not iterations)),
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


def _kept(row: Row, *, has_grace: bool) -> dict[str, int]:
    """Of the counters of remedies that of a grace call which still counts, for what was granted once is not granted again.

    And what the agent's own model was found to refuse: it is asked first again.
    """
    kept = {"grace_answered"} if has_grace else set[str]()
    if row["model_index"] == 0:
        kept |= {*LEARNED}
    return {name: n for name, n in row["remedies"].items() if name in kept}


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
