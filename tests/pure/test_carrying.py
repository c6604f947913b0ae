"""What a process knows of the turns that it carries, and the stop that reaches whoever is blocked."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from uuid import UUID

import pytest

from orchestration.carrying import Carried, Registry
from orchestration.steps import Signals
from orchestration.stopping import Stop
from persistence.records.outcome import Counters
from tests.pure.turns import turn


def carried(n: int = 1, **how: bool) -> Carried:
    return Carried(turn(id=UUID(int=n)), asked_at=time.monotonic(), **how)


def test_a_stop_is_heard_by_all_who_asked_and_by_nobody_twice() -> None:
    stop, heard = Stop(), list[str]()
    stop.on_set(lambda: heard.append("first"))
    forget = stop.on_set(lambda: heard.append("second"))
    stop.on_set(lambda: heard.append("third"))
    forget()

    stop.set()
    stop.set()

    assert heard == ["first", "third"]
    assert stop.is_set()
    assert stop.wait(0)


def test_who_asks_after_the_stop_hears_of_it_at_once() -> None:
    stop, heard = Stop(), list[str]()
    stop.set()

    stop.on_set(lambda: heard.append("late"))()

    assert heard == ["late"]


def test_nobody_misses_a_stop_that_comes_while_they_ask() -> None:
    for _ in range(200):
        stop, heard = Stop(), list[int]()
        threads = [
            threading.Thread(target=stop.set),
            threading.Thread(target=lambda s=stop, h=heard: s.on_set(lambda: h.append(1))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert heard == [1]


def test_a_wait_without_a_stop_ends_with_its_time() -> None:
    assert not Stop().wait(0)


def test_an_interrupt_and_a_loss_stop_what_the_turn_is_doing() -> None:
    interrupted, lost = carried(), carried()

    interrupted.interrupt()
    lost.lose()

    assert (interrupted.stop.is_set(), lost.stop.is_set()) == (True, True)
    assert (interrupted.signals, lost.signals) == (Signals(is_interrupted=True), Signals())
    assert (interrupted.is_lost, lost.is_lost) == (False, True)


def test_a_turn_that_is_alone_leaves_once_it_is_no_suspect_any_more() -> None:
    alone = carried(alone=True)
    suspect = replace(alone.turn, counters=Counters(is_suspect=True))

    alone.move(suspect)
    assert alone.signals == Signals()
    alone.move(replace(suspect, counters=Counters()))
    assert alone.signals == Signals(must_hand_back=True)
    assert not alone.stop.is_set(), "its step may end"


def test_a_step_hangs_when_its_limit_has_passed_and_not_when_it_has_none() -> None:
    one = carried()

    assert one.is_inside_its_limit
    one.begin_step(60)
    assert one.is_inside_its_limit
    one.begin_step(-1)
    assert not one.is_inside_its_limit
    one.begin_step(None)
    assert one.is_inside_its_limit


def test_a_confirmation_is_as_old_as_its_question_and_never_gets_older() -> None:
    one = Carried(turn(), asked_at=time.monotonic() - 60)

    assert not one.confirmed_since(10)
    one.confirm(time.monotonic())
    one.confirm(time.monotonic() - 60)
    assert one.confirmed_since(10)


def test_a_turn_that_was_taken_and_claimed_again_in_one_process_keeps_its_newer_place() -> None:
    registry, old, new = Registry(), carried(), carried()
    registry.add(old)
    registry.add(new)

    registry.remove(old)

    assert registry.get(UUID(int=1)) is new
    registry.remove(new)
    assert registry.all() == []


def test_a_drain_reaches_the_turns_that_are_here_and_those_that_come() -> None:
    registry, before, after = Registry(), carried(1), carried(2)
    registry.add(before)

    registry.drain()
    registry.add(after)

    assert registry.is_draining
    assert [c.signals.must_hand_back for c in (before, after)] == [True, True]


def test_patience_with_postgres_ends_when_the_turn_is_lost_and_not_at_once_when_the_process_leaves() -> None:
    registry, one = Registry(), carried()
    gives_up = registry.patience(one)

    assert not gives_up()
    registry.drain()
    assert not gives_up()
    one.lose()
    assert gives_up()


def test_patience_with_postgres_counts_from_the_drain_however_long_the_outage_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry, one, now = Registry(), carried(), [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    gives_up = registry.patience(one)

    now[0] += 3_600
    registry.drain()

    assert not gives_up()
    now[0] += 4
    assert not gives_up()
    now[0] += 2
    assert gives_up()


def test_a_callback_that_fails_keeps_nobody_else_from_hearing_of_the_stop() -> None:
    stop, heard = Stop(), list[str]()
    stop.on_set(lambda: heard.append("first"))
    stop.on_set(lambda: [][0])
    stop.on_set(lambda: heard.append("third"))

    stop.set()

    assert heard == ["first", "third"]
