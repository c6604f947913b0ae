"""Batches: many turns made from one file, and what happened to the batch itself."""

from __future__ import annotations

from alembic import op

from persistence.migrate import statements

revision = "0004"
down_revision = "0003"

UP = """
CREATE TABLE batches (
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    agent TEXT NOT NULL,
    name TEXT,
    idempotency_key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    size INTEGER NOT NULL,
    status TEXT DEFAULT 'filling' NOT NULL,
    resumes INTEGER DEFAULT 0 NOT NULL,
    event_seq BIGINT DEFAULT 0 NOT NULL,
    sealed_at TIMESTAMP WITH TIME ZONE,
    interrupt_requested_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT batches_pkey PRIMARY KEY (id),
    CONSTRAINT batches_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (id),
    CONSTRAINT batches_idempotency_key UNIQUE (tenant_id, idempotency_key),
    CONSTRAINT batches_status_known CHECK (status IN ('filling', 'running', 'completed', 'completed_with_failures',
        'failed', 'interrupted')),
    CONSTRAINT batches_filling_means_unsealed CHECK ((status = 'filling') = (sealed_at IS NULL)),
    CONSTRAINT batches_ended_means_ended_at CHECK ((status IN ('filling', 'running')) = (ended_at IS NULL))
);
COMMENT ON COLUMN batches.agent IS 'that of items which name none';
COMMENT ON COLUMN batches.size IS 'how many items it has once they are all stored';
CREATE INDEX batches_live ON batches (id) WHERE ended_at IS NULL;
CREATE INDEX batches_newest ON batches (created_at);
CREATE INDEX batches_of_request ON batches (tenant_id, request_hash);
CREATE TABLE batch_events (
    batch_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    type TEXT NOT NULL,
    payload JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT batch_events_pkey PRIMARY KEY (batch_id, seq),
    CONSTRAINT batch_events_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batches (id)
);
ALTER TABLE turns ADD COLUMN interrupt_reason TEXT;
ALTER TABLE turns
    ADD CONSTRAINT turns_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batches (id),
    ADD CONSTRAINT turns_interrupt_reason_is_of_an_interrupt CHECK (interrupt_reason IS NULL OR interrupt_reason IN
        ('interrupted_by_user', 'interrupted_by_parent', 'batch_interrupted')),
    ADD CONSTRAINT turns_items_are_named CHECK (batch_id IS NULL OR (n IS NOT NULL AND custom_id IS NOT NULL));
COMMENT ON COLUMN turns.interrupt_reason IS 'the exit reason that an interrupt leads to, NULL for the user''s';
COMMENT ON COLUMN turns.n IS 'which of the children of one call, or line of a batch''s file';
CREATE UNIQUE INDEX turns_items ON turns (batch_id, n) WHERE batch_id IS NOT NULL;
CREATE UNIQUE INDEX turns_items_named ON turns (batch_id, custom_id) WHERE batch_id IS NOT NULL;
CREATE INDEX turns_items_ended ON turns (batch_id, ended_at) WHERE batch_id IS NOT NULL;
"""

DOWN = """
DROP INDEX turns_items;
DROP INDEX turns_items_named;
DROP INDEX turns_items_ended;
COMMENT ON COLUMN turns.n IS 'which of the children of one call';
ALTER TABLE turns DROP CONSTRAINT turns_batch_id_fkey, DROP CONSTRAINT turns_items_are_named,
    DROP COLUMN interrupt_reason;
DROP TABLE batch_events;
DROP TABLE batches;
"""


def upgrade() -> None:
    for statement in statements(UP):
        op.execute(statement)


def downgrade() -> None:
    for statement in statements(DOWN):
        op.execute(statement)
