from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.tools.bench import Bench


@pytest.fixture
def clock(tmp_path: Path) -> Bench:
    return Bench(tmp_path, ("time",))


def test_the_time_is_given_in_iso_8601_with_its_offset(clock: Bench) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    texts = [clock.text("current_time"), clock.text("current_time", timezone="Asia/Kolkata")]

    assert texts[0].endswith("+00:00")
    assert texts[1].endswith("+05:30")
    for text in texts:
        assert before <= datetime.fromisoformat(text) <= before + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("zone", "reason"),
    [
        ("Berlin", "Did you mean Europe/Berlin?"),
        ("new york", "Did you mean America/New_York"),
        ("Mars/Olympus", "Use an IANA name"),
        ("../../etc/passwd", "Use an IANA name"),
        ("/etc/localtime", "Use an IANA name"),
        ("America", "There is no time zone 'America'."),
        ("", "Use an IANA name"),
    ],
)
def test_a_zone_that_is_not_known_is_refused_with_what_might_be_meant(clock: Bench, zone: str, reason: str) -> None:
    assert reason in clock.refusal("current_time", timezone=zone)
