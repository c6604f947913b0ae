"""Fixtures for the tests of batches."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from persistence.database import Database
from tests.support.ledger import Ledger
from tests.support.workbench import Bench, ledger

__all__ = ["bench", "ledger"]


@pytest.fixture
def bench(fresh_database_url: str, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    """A bench with a database of its own: what a service does to all batches it does to those of the test alone."""
    database = Database(fresh_database_url)
    made = Bench(database, ledger, tmp_path)
    yield made
    made.check()
    database.close()
