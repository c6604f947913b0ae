"""Tenants, agents, sessions, turns and everything that hangs on a turn."""

from __future__ import annotations

from alembic import op

from persistence.migrate import statements

revision = "0001"
down_revision = None

UP = """
CREATE TABLE tenants (
    id UUID NOT NULL,
    name TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT tenants_pkey PRIMARY KEY (id),
    CONSTRAINT tenants_name_key UNIQUE (name)
);
CREATE TABLE agents (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    settings JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT agents_pkey PRIMARY KEY (id)
);
COMMENT ON COLUMN agents.id IS 'digest of settings';
CREATE TABLE sessions (
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    system_prompt TEXT,
    workspace_id TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT sessions_pkey PRIMARY KEY (id),
    CONSTRAINT sessions_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);
COMMENT ON COLUMN sessions.system_prompt IS 'built once, sent byte for byte';
COMMENT ON COLUMN sessions.workspace_id IS 'id file of the root that holds the session''s folder';
CREATE TABLE turns (
    id UUID NOT NULL,
    session_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    agent_id TEXT NOT NULL,
    input JSON NOT NULL,
    request_hash TEXT NOT NULL,
    idempotency_key TEXT,
    parent_turn_id UUID,
    parent_call_id TEXT,
    n INTEGER,
    batch_id UUID,
    custom_id TEXT,
    queue TEXT DEFAULT 'interactive' NOT NULL,
    priority SMALLINT DEFAULT 0 NOT NULL,
    format INTEGER DEFAULT 1 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    deadline TIMESTAMP WITH TIME ZONE,
    iterations_max INTEGER DEFAULT 90 NOT NULL,
    max_tokens_total BIGINT,
    max_cost_usd NUMERIC,
    max_crashes INTEGER DEFAULT 3 NOT NULL,
    resumes INTEGER DEFAULT 0 NOT NULL,
    dispatched_at TIMESTAMP WITH TIME ZONE,
    worker TEXT,
    crash_count INTEGER DEFAULT 0 NOT NULL,
    result JSON,
    status TEXT DEFAULT 'queued' NOT NULL,
    exit_reason TEXT,
    waiting_for TEXT,
    resume_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    interrupt_requested_at TIMESTAMP WITH TIME ZONE,
    pending_children INTEGER DEFAULT 0 NOT NULL,
    hand_back_at TIMESTAMP WITH TIME ZONE,
    lease_expires_at TIMESTAMP WITH TIME ZONE,
    fencing_token BIGINT DEFAULT 0 NOT NULL,
    position BIGINT DEFAULT 0 NOT NULL,
    event_seq BIGINT DEFAULT 0 NOT NULL,
    last_seq BIGINT DEFAULT 0 NOT NULL,
    inbox_n BIGINT DEFAULT 0 NOT NULL,
    iterations_used INTEGER DEFAULT 0 NOT NULL,
    grace_used BOOLEAN DEFAULT false NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    last_error TEXT,
    retry_after_s FLOAT,
    model_index INTEGER DEFAULT 0 NOT NULL,
    remedies JSON DEFAULT '{}' NOT NULL,
    crash_streak INTEGER DEFAULT 0 NOT NULL,
    is_suspect BOOLEAN DEFAULT false NOT NULL,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    cache_read_tokens BIGINT DEFAULT 0 NOT NULL,
    cache_write_tokens BIGINT DEFAULT 0 NOT NULL,
    reasoning_tokens BIGINT DEFAULT 0 NOT NULL,
    unknown_attempts INTEGER DEFAULT 0 NOT NULL,
    cost_usd NUMERIC,
    activity TEXT,
    activity_since TIMESTAMP WITH TIME ZONE,
    CONSTRAINT turns_pkey PRIMARY KEY (id),
    CONSTRAINT turns_idempotency_key UNIQUE (tenant_id, idempotency_key),
    CONSTRAINT turns_child_key UNIQUE (parent_turn_id, parent_call_id, n),
    CONSTRAINT turns_status_known CHECK (status IN ('queued', 'running', 'waiting', 'completed', 'incomplete',
        'interrupted', 'failed')),
    CONSTRAINT turns_exit_reason_known CHECK (exit_reason IS NULL OR exit_reason IN ('final_answer',
        'budget_exhausted', 'token_cap', 'cost_cap', 'deadline', 'output_truncated', 'tool_loop',
        'interrupted_by_user', 'interrupted_by_parent', 'batch_interrupted', 'provider_failed', 'rate_limited',
        'refused', 'empty_response', 'invalid_tool_call', 'tool_failing', 'context_overflow',
        'compression_failed', 'output_invalid', 'config_error', 'worker_lost', 'wait_expired',
        'internal_error')),
    CONSTRAINT turns_waiting_for_known CHECK (waiting_for IS NULL OR waiting_for IN ('approval', 'answer',
        'caller_tool', 'children', 'time', 'retry', 'provider_batch', 'window')),
    CONSTRAINT turns_ended_means_exit_reason CHECK ((status IN ('queued', 'running', 'waiting')) = (exit_reason
        IS NULL)),
    CONSTRAINT turns_ended_means_ended_at CHECK ((exit_reason IS NULL) = (ended_at IS NULL)),
    CONSTRAINT turns_running_means_leased CHECK ((status = 'running') = (lease_expires_at IS NOT NULL AND worker
        IS NOT NULL)),
    CONSTRAINT turns_waiting_means_for_something CHECK ((status = 'waiting') = (waiting_for IS NOT NULL)),
    CONSTRAINT turns_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (id),
    CONSTRAINT turns_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (id),
    CONSTRAINT turns_agent_id_fkey FOREIGN KEY(agent_id) REFERENCES agents (id),
    CONSTRAINT turns_parent_turn_id_fkey FOREIGN KEY(parent_turn_id) REFERENCES turns (id)) WITH (fillfactor = 70);
COMMENT ON COLUMN turns.n IS 'which of the children of one call';
CREATE INDEX turns_due ON turns (resume_at) WHERE status = 'waiting';
CREATE INDEX turns_newest ON turns (created_at);
CREATE INDEX turns_of_session ON turns (session_id, created_at);
CREATE UNIQUE INDEX turns_one_live_per_session ON turns (session_id) WHERE started_at IS NOT NULL AND exit_reason IS NULL;
CREATE INDEX turns_queued ON turns (queue, tenant_id, priority DESC, created_at) WHERE status = 'queued';
CREATE INDEX turns_running ON turns (id) WHERE status = 'running';
CREATE TABLE inbox (
    turn_id UUID NOT NULL,
    n BIGINT NOT NULL,
    kind TEXT NOT NULL,
    payload JSON NOT NULL,
    state TEXT DEFAULT 'new' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT inbox_pkey PRIMARY KEY (turn_id, n),
    CONSTRAINT inbox_kind_known CHECK (kind IN ('steer', 'approval', 'answer', 'tool_result', 'child_ended')),
    CONSTRAINT inbox_state_known CHECK (state IN ('new', 'applied', 'not_delivered')),
    CONSTRAINT inbox_turn_id_fkey FOREIGN KEY(turn_id) REFERENCES turns (id)
);
CREATE TABLE messages (
    session_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    turn_id UUID NOT NULL,
    iteration INTEGER NOT NULL,
    role TEXT NOT NULL,
    origin TEXT NOT NULL,
    content JSON NOT NULL,
    wire JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (session_id, seq),
    CONSTRAINT messages_role_known CHECK (role IN ('user', 'assistant', 'tool')),
    CONSTRAINT messages_origin_known CHECK (origin IN ('user', 'model', 'tool', 'steer', 'notice'))
);
CREATE TABLE compressions (
    session_id UUID NOT NULL,
    n INTEGER NOT NULL,
    turn_id UUID NOT NULL,
    from_seq BIGINT NOT NULL,
    to_seq BIGINT NOT NULL,
    summary JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT compressions_pkey PRIMARY KEY (session_id, n),
    CONSTRAINT compressions_range_is_forward CHECK (from_seq <= to_seq),
    CONSTRAINT compressions_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (id)
);
CREATE TABLE tool_calls (
    turn_id UUID NOT NULL,
    call_id TEXT NOT NULL,
    iteration INTEGER NOT NULL,
    n INTEGER NOT NULL,
    name TEXT NOT NULL,
    effect TEXT NOT NULL,
    is_parallel BOOLEAN NOT NULL,
    status TEXT NOT NULL,
    started_token BIGINT,
    duration_s FLOAT,
    result TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT tool_calls_pkey PRIMARY KEY (turn_id, call_id),
    CONSTRAINT tool_calls_status_known CHECK (status IN ('open', 'started', 'succeeded', 'failed', 'timed_out',
        'interrupted', 'denied', 'not_run', 'unknown'))) WITH (fillfactor = 80);
COMMENT ON COLUMN tool_calls.n IS 'place among the calls of its message';
COMMENT ON COLUMN tool_calls.started_token IS 'fencing token of the owner that marked it started';
COMMENT ON COLUMN tool_calls.result IS 'kept here until every sibling is in, then in messages alone';
CREATE TABLE model_calls (
    turn_id UUID NOT NULL,
    fencing_token BIGINT NOT NULL,
    position BIGINT NOT NULL,
    iteration INTEGER NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    error TEXT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cache_read_tokens BIGINT,
    cache_write_tokens BIGINT,
    reasoning_tokens BIGINT,
    cost_usd NUMERIC,
    latency_s FLOAT,
    request_id TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT model_calls_pkey PRIMARY KEY (turn_id, fencing_token, position)
);
CREATE TABLE events (
    turn_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    type TEXT NOT NULL,
    payload JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (turn_id, seq)
);
CREATE TABLE deliveries (
    turn_id UUID NOT NULL,
    resumes INTEGER NOT NULL,
    kind TEXT NOT NULL,
    target TEXT DEFAULT '' NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE,
    sent_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT deliveries_pkey PRIMARY KEY (turn_id, resumes, kind, target),
    CONSTRAINT deliveries_turn_id_fkey FOREIGN KEY(turn_id) REFERENCES turns (id),
    CONSTRAINT deliveries_state_known CHECK (state IN ('pending', 'sent', 'given_up'))
);
CREATE INDEX deliveries_pending ON deliveries (next_at) WHERE state = 'pending';
CREATE TABLE workers (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    boot TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    slots INTEGER DEFAULT 0 NOT NULL,
    busy INTEGER DEFAULT 0 NOT NULL,
    stuck INTEGER DEFAULT 0 NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (id)
);
COMMENT ON COLUMN workers.id IS 'boot id, pid namespace, pid and start time';
INSERT INTO tenants (id, name) VALUES ('00000000-0000-0000-0000-000000000001', 'default');
"""

DOWN = """
DROP TABLE workers;
DROP TABLE deliveries;
DROP TABLE events;
DROP TABLE model_calls;
DROP TABLE tool_calls;
DROP TABLE compressions;
DROP TABLE messages;
DROP TABLE inbox;
DROP TABLE turns;
DROP TABLE sessions;
DROP TABLE agents;
DROP TABLE tenants;
"""


def upgrade() -> None:
    for statement in statements(UP):
        op.execute(statement)


def downgrade() -> None:
    for statement in statements(DOWN):
        op.execute(statement)
