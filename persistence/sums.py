"""What many turns cost together. Added up when somebody asks: no row is kept that every ending would have to lock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from persistence.database import Database, Row
from persistence.errors import NotFound
from persistence.records.spending import By, Spending
from persistence.records.usage import Usage
from persistence.turns import spending_of, usage_of


@dataclass(frozen=True, slots=True)
class Sum:
    """What `turns` turns used and cost; `name` is that of what they have in common, None where they have nothing."""

    name: str | None
    turns: int
    usage: Usage
    spending: Spending


# Over rows of turns, for usage_of and spending_of.
SUMS = """count(*) AS turns,
  sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
  sum(cache_read_tokens)::bigint AS cache_read_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
  sum(reasoning_tokens)::bigint AS reasoning_tokens, sum(cost_usd) AS cost_usd,
  sum(unpriced_attempts)::bigint AS unpriced_attempts, sum(unknown_attempts)::bigint AS unknown_attempts,
  sum(estimated_tokens)::bigint AS estimated_tokens, sum(estimated_cost_usd) AS estimated_cost_usd"""

_NAMES = {By.TENANT: "n.name", By.AGENT: "a.name", By.BATCH: "t.batch_id::text"}

_GROUPED = """
SELECT {name} AS name, {sums}
FROM turns t JOIN tenants n ON n.id = t.tenant_id JOIN agents a ON a.id = t.agent_id
WHERE (%(tenant)s::text IS NULL OR n.name = %(tenant)s)
  AND (%(since)s::timestamptz IS NULL OR t.created_at >= %(since)s)
GROUP BY 1 ORDER BY 1 NULLS LAST"""

_TREE = f"""
WITH RECURSIVE tree AS (
  SELECT id FROM turns WHERE id = %(id)s UNION SELECT t.id FROM turns t JOIN tree ON t.parent_turn_id = tree.id
)
SELECT %(id)s::text AS name, {SUMS} FROM turns WHERE id IN (SELECT id FROM tree)"""


def grouped(database: Database, by: By, *, tenant: str | None = None, since: datetime | None = None) -> list[Sum]:
    """The sums of the turns that were submitted since then. Raises NotFound for a tenant that there is not."""
    if tenant is not None and not database.rows("SELECT FROM tenants WHERE name = %(name)s", {"name": tenant}):
        known = ", ".join(r["name"] for r in database.rows("SELECT name FROM tenants ORDER BY name LIMIT 20"))
        raise NotFound(f"there is no tenant {tenant!r}; known are {known}")
    sql = _GROUPED.format(name=_NAMES[by], sums=SUMS)
    return [_to_sum(r) for r in database.rows(sql, {"tenant": tenant, "since": since})]


def tree(database: Database, turn_id: UUID) -> Sum:
    """A turn and all that are below it. Raises NotFound."""
    row = database.one(_TREE, {"id": turn_id})
    if not row["turns"]:
        raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
    return _to_sum(row)


def _to_sum(row: Row) -> Sum:
    return Sum(row["name"], row["turns"], usage_of(row), spending_of(row))
