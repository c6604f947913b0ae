"""What turns leave behind, each row written by a fenced statement of its turn."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

from persistence.records.message import CallStatus
from persistence.schema.columns import count, created, instant, metadata, one_of

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("turn_id", Uuid, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("n", Integer, nullable=False, comment="place among the calls of its message"),
    Column("name", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("is_parallel", Boolean, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_token", BigInteger, comment="fencing token of the owner that marked it started"),
    Column("duration_s", Float),
    Column("result", Text, comment="kept here until every sibling is in, then in messages alone"),
    created(),
    PrimaryKeyConstraint("turn_id", "call_id", name="tool_calls_pkey"),
    CheckConstraint(one_of("status", CallStatus), name="tool_calls_status_known"),
    postgresql_with={"fillfactor": "80"},
)

model_calls = Table(
    "model_calls",
    metadata,
    Column("turn_id", Uuid, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("error", Text),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cache_read_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("cost_usd", Numeric, comment="an estimate where estimated_tokens is set"),
    Column("latency_s", Float),
    Column("request_id", Text),
    created(),
    Column("estimated_tokens", BigInteger),
    Column("key_label", Text, comment="what the configuration calls the key: a reference or its place, never itself"),
    PrimaryKeyConstraint("turn_id", "fencing_token", "position", name="model_calls_pkey"),
)

events = Table(
    "events",
    metadata,
    Column("turn_id", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    created(),
    PrimaryKeyConstraint("turn_id", "seq", name="events_pkey"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("turn_id", Uuid, nullable=False),
    Column("resumes", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False, server_default=text("''")),
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    count("attempts"),
    instant("next_at"),
    instant("sent_at"),
    created(),
    PrimaryKeyConstraint("turn_id", "resumes", "kind", "target", name="deliveries_pkey"),
    ForeignKeyConstraint(["turn_id"], ["turns.id"], name="deliveries_turn_id_fkey"),
    CheckConstraint(one_of("state", ("pending", "sent", "given_up")), name="deliveries_state_known"),
    Index("deliveries_pending", "next_at", postgresql_where=text("state = 'pending'")),
)
