"""Fixtures for the tests of the store."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from persistence.database import Database
from tests.support.ledger import Ledger
from tests.support.workbench import Bench, ledger, pool

__all__ = ["bench", "ledger", "pool"]


@pytest.fixture
def bench(pool: Database, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    """A bench for outcomes that are made by hand: no tool ran, so its ledger says nothing."""
    made = Bench(pool, ledger, tmp_path, runs_tools=False)
    yield made
    made.check()
