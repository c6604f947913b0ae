"""Which of its provider's keys an attempt was made with."""

from __future__ import annotations

from alembic import op

from persistence.migrate import statements

revision = "0006"
down_revision = "0005"

UP = """
ALTER TABLE model_calls ADD COLUMN key_label TEXT;
COMMENT ON COLUMN model_calls.key_label IS 'what the configuration calls the key: a reference or its place, never itself';
"""

DOWN = """
ALTER TABLE model_calls DROP COLUMN key_label;
"""


def upgrade() -> None:
    for statement in statements(UP):
        op.execute(statement)


def downgrade() -> None:
    for statement in statements(DOWN):
        op.execute(statement)
