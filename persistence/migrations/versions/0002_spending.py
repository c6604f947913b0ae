"""What attempts are estimated to have cost that nobody told the usage of, and how many have no price."""

from __future__ import annotations

from alembic import op

from persistence.migrate import statements

revision = "0002"
down_revision = "0001"

UP = """
ALTER TABLE turns
    ADD COLUMN unpriced_attempts INTEGER DEFAULT 0 NOT NULL,
    ADD COLUMN estimated_tokens BIGINT DEFAULT 0 NOT NULL,
    ADD COLUMN estimated_cost_usd NUMERIC;
ALTER TABLE model_calls ADD COLUMN estimated_tokens BIGINT;
COMMENT ON COLUMN turns.cost_usd IS 'of the reported usage, as far as prices are known';
COMMENT ON COLUMN model_calls.cost_usd IS 'an estimate where estimated_tokens is set';
"""

DOWN = """
COMMENT ON COLUMN model_calls.cost_usd IS NULL;
COMMENT ON COLUMN turns.cost_usd IS NULL;
ALTER TABLE model_calls DROP COLUMN estimated_tokens;
ALTER TABLE turns DROP COLUMN unpriced_attempts, DROP COLUMN estimated_tokens, DROP COLUMN estimated_cost_usd;
"""


def upgrade() -> None:
    for statement in statements(UP):
        op.execute(statement)


def downgrade() -> None:
    for statement in statements(DOWN):
        op.execute(statement)
