"""Every table, read top to bottom.

tenants own everything. An agents row is one immutable configuration. A sessions row is a conversation: one system
prompt, one append-only list of messages, many turns. A turns row is the work that one request starts, and the queue of
record: `queued -> running -> waiting -> queued`, and from each of them to an ending. Its columns stand in the order in
which they stop changing: what a checkpoint writes comes last and together, which keeps its WAL small.
tool_calls, model_calls, events, messages and deliveries hang on their turn and are written by its fenced statement
alone, which selects from the turn's row: a foreign key there could not fail and would lock a row for every insert.
The inbox is written by a statement that locks the turn's row. workers is who is alive.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from persistence.records.batch import BatchStatus
from persistence.records.message import CallStatus, Origin, Role
from persistence.records.status import INTERRUPTED, ExitReason, TurnStatus, WaitingFor

metadata = MetaData(
    naming_convention={"pk": "%(table_name)s_pkey", "fk": "%(table_name)s_%(column_0_name)s_fkey"},
)


def _instant(name: str, *, nullable: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _created() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()"))


def _count(name: str, *, kind: type[BigInteger] | type[Integer] = Integer, start: int = 0) -> Column[object]:
    return Column(name, kind, nullable=False, server_default=text(str(start)))


def _one_of(column: str, values: object, *, nullable: bool = False) -> str:
    listed = ", ".join(f"'{v}'" for v in values)  # type: ignore[attr-defined]
    rule = f"{column} IN ({listed})"
    return f"{column} IS NULL OR {rule}" if nullable else rule


tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    _created(),
    UniqueConstraint("name", name="tenants_name_key"),
)

agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True, comment="digest of settings"),
    Column("name", Text, nullable=False),
    Column("settings", JSON, nullable=False),
    _created(),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("system_prompt", Text, comment="built once, sent byte for byte"),
    Column("workspace_id", Text, comment="id file of the root that holds the session's folder"),
    _created(),
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
    _count("resumes"),
    _count("event_seq", kind=BigInteger),
    _instant("sealed_at"),
    _instant("interrupt_requested_at"),
    _instant("ended_at"),
    _created(),
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
    CheckConstraint(_one_of("status", BatchStatus), name="batches_status_known"),
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
    _created(),
    PrimaryKeyConstraint("batch_id", "seq", name="batch_events_pkey"),
)

turns = Table(
    "turns",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("session_id", Uuid, ForeignKey("sessions.id"), nullable=False),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("agent_id", Text, ForeignKey("agents.id"), nullable=False),
    Column("input", JSON, nullable=False),
    Column("request_hash", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("parent_turn_id", Uuid, ForeignKey("turns.id")),
    Column("parent_call_id", Text),
    Column("n", Integer, comment="which of the children of one call, or line of a batch's file"),
    Column("batch_id", Uuid, ForeignKey("batches.id")),
    Column("custom_id", Text),
    Column("queue", Text, nullable=False, server_default=text("'interactive'")),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    _count("format", start=1),
    _created(),
    _instant("started_at"),
    _instant("deadline"),
    _count("iterations_max", start=90),
    Column("max_tokens_total", BigInteger),
    Column("max_cost_usd", Numeric),
    _count("max_crashes", start=3),
    _count("resumes"),
    _instant("dispatched_at"),
    Column("worker", Text),
    _count("crash_count"),
    Column("result", JSON),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("exit_reason", Text),
    Column("waiting_for", Text),
    _instant("resume_at"),
    _instant("expires_at"),
    _instant("ended_at"),
    _instant("interrupt_requested_at"),
    _count("pending_children"),
    _instant("hand_back_at"),
    _instant("lease_expires_at"),
    _count("fencing_token", kind=BigInteger),
    _count("position", kind=BigInteger),
    _count("event_seq", kind=BigInteger),
    _count("last_seq", kind=BigInteger),
    _count("inbox_n", kind=BigInteger),
    _count("iterations_used"),
    Column("grace_used", Boolean, nullable=False, server_default=text("false")),
    _count("attempts"),
    Column("last_error", Text),
    Column("retry_after_s", Float),
    _count("model_index"),
    Column("remedies", JSON, nullable=False, server_default=text("'{}'")),
    _count("crash_streak"),
    Column("is_suspect", Boolean, nullable=False, server_default=text("false")),
    _count("input_tokens", kind=BigInteger),
    _count("output_tokens", kind=BigInteger),
    _count("cache_read_tokens", kind=BigInteger),
    _count("cache_write_tokens", kind=BigInteger),
    _count("reasoning_tokens", kind=BigInteger),
    _count("unknown_attempts"),
    Column("cost_usd", Numeric, comment="of the reported usage, as far as prices are known"),
    Column("activity", Text),
    _instant("activity_since"),
    _count("unpriced_attempts"),
    _count("estimated_tokens", kind=BigInteger),
    Column("estimated_cost_usd", Numeric),
    Column("pending", JSON, comment="the answer that a provider is making by itself"),
    _instant("pending_since"),
    Column("interrupt_reason", Text, comment="the exit reason that an interrupt leads to, NULL for the user's"),
    Column(
        "awaits_allotment",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="an item that has no part of its batch's caps yet",
    ),
    UniqueConstraint("tenant_id", "idempotency_key", name="turns_idempotency_key"),
    UniqueConstraint("parent_turn_id", "parent_call_id", "n", name="turns_child_key"),
    CheckConstraint(_one_of("status", TurnStatus), name="turns_status_known"),
    CheckConstraint(_one_of("exit_reason", ExitReason, nullable=True), name="turns_exit_reason_known"),
    CheckConstraint(_one_of("waiting_for", WaitingFor, nullable=True), name="turns_waiting_for_known"),
    CheckConstraint(
        "(status IN ('queued', 'running', 'waiting')) = (exit_reason IS NULL)", name="turns_ended_means_exit_reason"
    ),
    CheckConstraint("(exit_reason IS NULL) = (ended_at IS NULL)", name="turns_ended_means_ended_at"),
    CheckConstraint(
        "(status = 'running') = (lease_expires_at IS NOT NULL AND worker IS NOT NULL)",
        name="turns_running_means_leased",
    ),
    CheckConstraint("(status = 'waiting') = (waiting_for IS NOT NULL)", name="turns_waiting_means_for_something"),
    CheckConstraint(
        _one_of("interrupt_reason", INTERRUPTED, nullable=True), name="turns_interrupt_reason_is_of_an_interrupt"
    ),
    CheckConstraint("batch_id IS NULL OR (n IS NOT NULL AND custom_id IS NOT NULL)", name="turns_items_are_named"),
    # The reaper's: never on the lease's time, which changes all the while and would make every update a cold one.
    Index("turns_running", "id", postgresql_where=text("status = 'running'")),
    Index(
        "turns_queued",
        "queue",
        "tenant_id",
        text("priority DESC"),
        "created_at",
        postgresql_where=text("status = 'queued'"),
    ),
    Index("turns_due", "resume_at", postgresql_where=text("status = 'waiting'")),
    Index(
        "turns_one_live_per_session",
        "session_id",
        unique=True,
        postgresql_where=text("started_at IS NOT NULL AND exit_reason IS NULL"),
    ),
    Index("turns_of_session", "session_id", "created_at"),
    Index("turns_newest", "created_at"),
    Index("turns_items", "batch_id", "n", unique=True, postgresql_where=text("batch_id IS NOT NULL")),
    Index("turns_items_named", "batch_id", "custom_id", unique=True, postgresql_where=text("batch_id IS NOT NULL")),
    Index("turns_awaiting", "batch_id", "n", postgresql_where=text("awaits_allotment AND ended_at IS NULL")),
    # Both for what has ended lately and, first or last of all, for what has not.
    Index("turns_items_ended", "batch_id", "ended_at", postgresql_where=text("batch_id IS NOT NULL")),
    postgresql_with={"fillfactor": "70"},
)

inbox = Table(
    "inbox",
    metadata,
    Column("turn_id", Uuid, ForeignKey("turns.id"), nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'new'")),
    _created(),
    PrimaryKeyConstraint("turn_id", "n", name="inbox_pkey"),
    CheckConstraint(
        _one_of("kind", ("steer", "approval", "answer", "tool_result", "child_ended")), name="inbox_kind_known"
    ),
    CheckConstraint(_one_of("state", ("new", "applied", "not_delivered")), name="inbox_state_known"),
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
    _created(),
    PrimaryKeyConstraint("session_id", "seq", name="messages_pkey"),
    CheckConstraint(_one_of("role", Role), name="messages_role_known"),
    CheckConstraint(_one_of("origin", Origin), name="messages_origin_known"),
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
    _created(),
    PrimaryKeyConstraint("session_id", "n", name="compressions_pkey"),
    CheckConstraint("from_seq <= to_seq", name="compressions_range_is_forward"),
)

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
    _created(),
    PrimaryKeyConstraint("turn_id", "call_id", name="tool_calls_pkey"),
    CheckConstraint(_one_of("status", CallStatus), name="tool_calls_status_known"),
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
    _created(),
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
    _created(),
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
    _count("attempts"),
    _instant("next_at"),
    _instant("sent_at"),
    _created(),
    PrimaryKeyConstraint("turn_id", "resumes", "kind", "target", name="deliveries_pkey"),
    ForeignKeyConstraint(["turn_id"], ["turns.id"], name="deliveries_turn_id_fkey"),
    CheckConstraint(_one_of("state", ("pending", "sent", "given_up")), name="deliveries_state_known"),
    Index("deliveries_pending", "next_at", postgresql_where=text("state = 'pending'")),
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
    _count("slots"),
    _count("busy"),
    _count("stuck"),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    _created(),
)
