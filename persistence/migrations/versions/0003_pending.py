"""The answer that a provider is making by itself, and since when."""

from __future__ import annotations

from alembic import op

from persistence.migrate import statements

revision = "0003"
down_revision = "0002"

UP = """
ALTER TABLE turns ADD COLUMN pending JSON, ADD COLUMN pending_since TIMESTAMP WITH TIME ZONE;
COMMENT ON COLUMN turns.pending IS 'the answer that a provider is making by itself';
"""

DOWN = """
ALTER TABLE turns DROP COLUMN pending, DROP COLUMN pending_since;
"""


def upgrade() -> None:
    for statement in statements(UP):
        op.execute(statement)


def downgrade() -> None:
    for statement in statements(DOWN):
        op.execute(statement)
