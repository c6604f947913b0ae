"""One fleet of guards for each test."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.guard.bench import Fleet, fleet_on


@pytest.fixture
def fleet(redis_url: str) -> Generator[Fleet]:
    with fleet_on(redis_url) as made:
        yield made
