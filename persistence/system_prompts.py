"""The system prompt of a session: stored when the session begins, and rebuilt where something has damaged it since."""

from __future__ import annotations

import logging
from dataclasses import replace

from persistence.database import Statements
from persistence.errors import LeaseLost
from persistence.records.agent import AgentSettings
from persistence.records.turn import Turn

log = logging.getLogger(__name__)

# What it is rebuilt from is the agent that began the session: later turns may be another's, and its prompt was sent
# with everything that stands in the history.
_RESTORE = """
WITH asked AS (
  SELECT s.id, s.system_prompt AS stored, (
      SELECT coalesce(a.settings ->> 'system_prompt', %(usual)s) FROM turns f JOIN agents a ON a.id = f.agent_id
      WHERE f.session_id = s.id ORDER BY f.created_at, f.id LIMIT 1) AS built
  FROM sessions s WHERE s.id = %(session_id)s
), held AS (
  UPDATE turns t SET event_seq = event_seq + 1 FROM asked
  WHERE t.id = %(id)s AND t.fencing_token = %(token)s AND t.status = 'running' AND stored IS DISTINCT FROM built
  RETURNING t.id, t.event_seq
), rebuilt AS (
  UPDATE sessions s SET system_prompt = asked.built FROM asked, held WHERE s.id = asked.id
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT held.id, held.event_seq, 'system_prompt.rebuilt', json_build_object('was', CASE
    WHEN stored IS NULL THEN 'missing' WHEN stored ~ '[^[:space:]]' THEN 'null' ELSE 'empty' END)
  FROM held, asked
)
SELECT stored, built, EXISTS (SELECT FROM held) AS is_rebuilt FROM asked"""


def restored(database: Statements, turn: Turn) -> Turn:
    """The claimed turn with the prompt of its session; where that is missing, the word null or blank, it is rebuilt.

    Stored by the same statement, so that every later turn reads these bytes. An agent whose prompt is blank on purpose
    is taken at its word. Raises LeaseLost.
    """
    if not is_damaged(turn.system_prompt):
        return turn
    usual = AgentSettings("", "").system_prompt
    params = {"id": turn.id, "session_id": turn.session_id, "token": turn.fencing_token, "usual": usual}
    found = database.rows(_RESTORE, params)[0]
    stored: str | None = found["stored"]
    if found["is_rebuilt"]:
        fields = {
            "turn_id": str(turn.id),
            "session_id": str(turn.session_id),
            "fencing_token": turn.fencing_token,
        }
        log.warning("system_prompt.missing" if stored is None else _name(stored), extra=fields)
    elif stored != found["built"]:
        raise LeaseLost(f"turn {turn.id} was taken away at once")
    return replace(turn, system_prompt=found["built"])


def is_damaged(prompt: str) -> bool:
    """Whether no agent can have meant this as its prompt."""
    return prompt.strip().lower() in ("", "null")


def _name(damaged: str) -> str:
    return "system_prompt.null" if damaged.strip() else "system_prompt.empty"
