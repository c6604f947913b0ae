"""What `perdure doctor` says of rate limits, dead endpoints and refused keys."""

from __future__ import annotations

import pytest

from orchestration.errors import ErrorClass
from orchestration.providers.settings import Api, ProviderSettings
from tests.guard.bench import Fleet
from workers.rate_guard import report as reports
from workers.rate_guard.report import report


@pytest.fixture(autouse=True)
def _everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave things behind in the Redis that they share."""
    monkeypatch.setattr(reports, "_MOST_SENTENCES", 1000)


def said(fleet: Fleet) -> list[str]:
    return [s for s in report(fleet.redis_url) if fleet.name in s]


def test_everything_that_holds_calls_is_said_and_nothing_else(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1, keys=("a", "b"), requests_per_minute=60)
    worker.is_let_in()
    worker.fails(ErrorClass.CONNECT, was_sent=False)
    assert said(fleet) == []

    worker.fails(ErrorClass.BILLING)
    worker.fails(ErrorClass.UPSTREAM_RATE_LIMIT, retry_after_s=50.0)
    for _ in range(5):
        worker.fails(ErrorClass.CONNECT, was_sent=False)

    found = said(fleet)
    assert any(s.startswith(f"A key of {fleet.name} was refused") for s in found)
    assert f"{fleet.name}:large is held back by a rate limit for 50 s" in found
    assert f"{fleet.name} kept failing and is left alone for 10 s" in found


def test_a_quota_group_is_named(fleet: Fleet) -> None:
    settings = ProviderSettings(fleet.name, Api.OPENAI_CHAT, quota_group=fleet.name)
    fleet.worker({fleet.name: settings}).is_limited(30.0)

    assert said(fleet) == [f"The quota group {fleet.name} is held back by a rate limit for 30 s"]


def test_without_redis_there_is_nothing_to_say() -> None:
    assert report("redis://127.0.0.1:9/0") == []
