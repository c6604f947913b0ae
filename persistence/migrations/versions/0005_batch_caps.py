"""Caps that the items of a batch share: each takes its own cap out of what is left before it may start."""

from __future__ import annotations

from alembic import op

from persistence.migrate import statements

revision = "0005"
down_revision = "0004"

UP = """
ALTER TABLE batches
    ADD COLUMN max_tokens_total BIGINT,
    ADD COLUMN max_cost_usd NUMERIC,
    ADD COLUMN caps_asked TEXT,
    ADD COLUMN allotment_n BIGINT DEFAULT 0 NOT NULL;
COMMENT ON COLUMN batches.caps_asked IS 'both caps as they were before a resume raised them';
COMMENT ON COLUMN batches.allotment_n IS 'how often something was taken out of what is left of the caps';
ALTER TABLE turns ADD COLUMN awaits_allotment BOOLEAN DEFAULT false NOT NULL;
COMMENT ON COLUMN turns.awaits_allotment IS 'an item that has no part of its batch''s caps yet';
CREATE INDEX turns_awaiting ON turns (batch_id, n) WHERE awaits_allotment AND ended_at IS NULL;
"""

DOWN = """
DROP INDEX turns_awaiting;
ALTER TABLE turns DROP COLUMN awaits_allotment;
ALTER TABLE batches DROP COLUMN max_tokens_total, DROP COLUMN max_cost_usd, DROP COLUMN caps_asked,
    DROP COLUMN allotment_n;
"""


def upgrade() -> None:
    for statement in statements(UP):
        op.execute(statement)


def downgrade() -> None:
    for statement in statements(DOWN):
        op.execute(statement)
