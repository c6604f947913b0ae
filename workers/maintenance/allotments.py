"""Shares out the caps that the items of a batch have together."""

from __future__ import annotations

from orchestration import allotting
from persistence.database import Database, Statements


class Allotments:
    """Correct with two leaders: who takes something out of a cap does so from what it saw, or not at all."""

    def __init__(self, writes: Database) -> None:
        self._writes = writes

    def run_once(self, database: Statements) -> int:
        """How many items may start now, or have ended for want of anything left."""
        return allotting.share_out(database, self._writes)
