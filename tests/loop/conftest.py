"""Fixtures for whole turns on a real Postgres."""

from tests.support.workbench import bench, ledger, pool

__all__ = ["bench", "ledger", "pool"]
