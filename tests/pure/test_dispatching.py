"""How many turns are woken, by the room that there is."""

from __future__ import annotations

import pytest

from persistence.queue import Room
from workers.maintenance.dispatcher import share


@pytest.mark.parametrize(
    ("room", "resend", "woken"),
    [
        pytest.param(Room(free=10, kept=0, waiting=0), False, 20, id="twice the free slots"),
        pytest.param(Room(free=10, kept=0, waiting=15), False, 5, id="less those on their way"),
        pytest.param(Room(free=10, kept=0, waiting=25), False, 0, id="never less than none"),
        pytest.param(Room(free=0, kept=0, waiting=0), False, 0, id="none without room"),
        pytest.param(Room(free=6, kept=4, waiting=0), False, 6, id="no more than there is where slots are kept"),
        pytest.param(Room(free=6, kept=4, waiting=6), False, 0, id="all are on their way"),
        pytest.param(Room(free=6, kept=4, waiting=6, missed=2), True, 2, id="those that were lost, and no others"),
        pytest.param(Room(free=6, kept=4, waiting=6, missed=2), False, 0, id="the queue still has them"),
        pytest.param(Room(free=10_000, kept=0, waiting=0), False, 500, id="a round has an end"),
    ],
)
def test_turns_are_woken_for_the_room_that_is_left(room: Room, resend: bool, woken: int) -> None:
    assert share(room, resend=resend) == woken
