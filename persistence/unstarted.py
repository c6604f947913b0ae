"""The statement that ends items which never started, as the checkpoint of a foreign ending would end each of them.

There is nothing to answer, nor anything of them in their session. One whose inbox holds something is left to that.
"""

from __future__ import annotations


def ending(wanted: str, status: str, also: str = "") -> str:
    """The text of it: `wanted` says which of the batch %(id)s, `status` is what they get, `also` what else is set.

    Takes the parameters `id`, `reason`, `result` and those of `wanted`; returns the ids of the items that were ended.
    """
    return f"""
WITH wanted AS (
  SELECT id FROM turns WHERE batch_id = %(id)s AND ended_at IS NULL AND started_at IS NULL AND inbox_n = 0 AND {wanted}
), ended AS (
  UPDATE turns t SET status = '{status}', exit_reason = %(reason)s, result = %(result)s::json, ended_at = now(),{also}
    fencing_token = fencing_token + 1, position = position + 1, event_seq = event_seq + 1
  FROM wanted WHERE t.id = wanted.id RETURNING t.id, t.event_seq, t.resumes
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.ended', json_build_object('status', '{status}', 'exit_reason', %(reason)s::text) FROM ended
), delivery AS (
  INSERT INTO deliveries (turn_id, resumes, kind, next_at) SELECT id, resumes, 'celery_result', now() FROM ended
)
SELECT id FROM ended"""
