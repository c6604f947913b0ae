"""What turns belong to and are made of: tenants, agents, sessions with their messages, batches; and who is alive."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from persistence.records.batch import BatchStatus
from persistence.records.message import Origin, Role
from persistence.schema.columns import count, created, instant, metadata, one_of

tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    created(),
    UniqueConstraint("name", name="tenants_name_key"),
)

agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True, comment="digest of settings"),
    Column("name", Text, nullable=False),
    Column("settings", JSON, nullable=False),
    created(),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("system_prompt", Text, comment="built once, sent byte for byte"),
    Column("workspace_id", Text, comment="id file of the root that holds the session's folder"),
    created(),
)

messages = Table(
    "messages",
    metadata,
    Column("session_id", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("turn_id", Uuid, nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("content", JSON, nullable=False),
    Column("wire", JSON),
    created(),
    PrimaryKeyConstraint("session_id", "seq", name="messages_pkey"),
    CheckConstraint(one_of("role", Role), name="messages_role_known"),
    CheckConstraint(one_of("origin", Origin), name="messages_origin_known"),
)

compressions = Table(
    "compressions",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.id"), nullable=False),
    Column("n", Integer, nullable=False),
    Column("turn_id", Uuid, nullable=False),
    Column("from_seq", BigInteger, nullable=False),
    Column("to_seq", BigInteger, nullable=False),
    Column("summary", JSON, nullable=False),
    created(),
    PrimaryKeyConstraint("session_id", "n", name="compressions_pkey"),
    CheckConstraint("from_seq <= to_seq", name="compressions_range_is_forward"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("agent", Text, nullable=False, comment="that of items which name none"),
    Column("name", Text),
    Column("idempotency_key", Text, nullable=False),
    Column("request_hash", Text, nullable=False),
    Column("size", Integer, nullable=False, comment="how many items it has once they are all stored"),
    Column("status", Text, nullable=False, server_default=text("'filling'")),
    count("resumes"),
    count("event_seq", kind=BigInteger),
    instant("sealed_at"),
    instant("interrupt_requested_at"),
    instant("ended_at"),
    created(),
    Column("max_tokens_total", BigInteger),
    Column("max_cost_usd", Numeric),
    Column("caps_asked", Text, comment="both caps as they were before a resume raised them"),
    Column(
        "allotment_n",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="how often something was taken out of what is left of the caps",
    ),
    UniqueConstraint("tenant_id", "idempotency_key", name="batches_idempotency_key"),
    CheckConstraint(one_of("status", BatchStatus), name="batches_status_known"),
    CheckConstraint("(status = 'filling') = (sealed_at IS NULL)", name="batches_filling_means_unsealed"),
    CheckConstraint("(status IN ('filling', 'running')) = (ended_at IS NULL)", name="batches_ended_means_ended_at"),
    Index("batches_live", "id", postgresql_where=text("ended_at IS NULL")),
    Index("batches_newest", "created_at"),
    Index("batches_of_request", "tenant_id", "request_hash"),
)

batch_events = Table(
    "batch_events",
    metadata,
    Column("batch_id", Uuid, ForeignKey("batches.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    created(),
    PrimaryKeyConstraint("batch_id", "seq", name="batch_events_pkey"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True, comment="boot id, pid namespace, pid and start time"),
    Column("name", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("boot", Text, nullable=False),
    Column("pid_namespace", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("queues", Text, nullable=False),
    count("slots"),
    count("busy"),
    count("stuck"),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    created(),
)
