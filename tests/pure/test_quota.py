"""What a provider's meters mean for the next request."""

from __future__ import annotations

import pytest

from orchestration.quota import Meter, Quota


@pytest.mark.parametrize(
    ("meter", "needed", "wait_s"),
    [
        (Meter(5, 60, 55.0), 1, 0.0),
        (Meter(0, 60, 60.0), 1, 1.0),  # it fills evenly: the first is there long before all are
        (Meter(0, 60, 60.0), 60, 60.0),
        (Meter(1_000, 10_000, 54.0), 4_000, 18.0),
        (Meter(0, 10_000, 60.0), 20_000, 60.0),  # more than ever fits: as soon as it is full
        (Meter(0, None, 12.0), 1, 12.0),
        (Meter(0, 60, None), 1, 0.0),  # nobody says when
        (Meter(-5, 60, 65.0), 1, 6.0),
    ],
)
def test_a_meter_says_when_enough_is_there(meter: Meter, needed: int, wait_s: float) -> None:
    assert meter.wait_s(needed) == pytest.approx(wait_s)


def test_the_slowest_meter_counts() -> None:
    quota = Quota(requests=Meter(0, 60, 60.0), tokens=Meter(0, 1_000, 60.0), output=Meter(0, 100, 60.0))

    assert quota.wait_s(500) == pytest.approx(30.0)
    assert Quota().wait_s(500) == 0.0
