"""Where turns are killed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from persistence.database import Database, patiently
from tests.crash.campaign import Ground
from tests.support.ledger import Ledger
from tests.support.workbench import ledger

__all__ = ["ledger"]


@pytest.fixture(scope="session")
def hasty_pool(database_url: str) -> Generator[Database]:
    """Commits that do not wait for the disk: Postgres itself lives on while its clients die."""
    database = Database(database_url, name="campaign", is_patient_about_disk=False)
    yield database
    database.close()


@pytest.fixture
def ground(hasty_pool: Database, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A patience that sleeps for a millisecond: answers of Postgres are lost thousands of times here."""
    defaults = patiently.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "pause_s", 0.001)
    return Ground(hasty_pool, ledger, tmp_path)
