"""Suspects wait for their children without holding up whoever wakes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from uuid import UUID

import pytest

from tests.support.workbench import wait_until
from workers import identity, solo
from workers.solo import Child, Children, Suspect


class Standing(Child):
    """A child without a process: it carries a turn until the test lets go of it."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self.worker = f"child {len(yard.started)}"
        yard.started.append(self)

    @property
    def pid(self) -> int:
        return 0

    def carry(self, suspect: Suspect) -> bool:
        self._yard.carried.append(suspect.turn_id)
        self._yard.let_go.acquire()
        return True

    def leave(self) -> None:
        self._yard.left += 1

    def stop(self) -> None:
        self._yard.let_go.release()

    def kill(self) -> None:
        raise AssertionError("nobody has to be killed here")


class Yard:
    def __init__(self) -> None:
        self.started: list[Standing] = []
        self.carried: list[UUID] = []
        self.left = 0
        self.let_go = threading.Semaphore(0)
        self.children = Children(2, start=lambda: Standing(self))

    def want(self, n: int) -> None:
        self.children.want(Suspect(UUID(int=n), lambda: False, _nobody_is_dead))


def _nobody_is_dead(worker: str) -> None:
    raise AssertionError(f"{worker} lives")


def test_whoever_wants_a_suspect_carried_does_not_wait_for_a_child() -> None:
    yard = Yard()

    for n in range(10):
        yard.want(n)  # all ten return, although nobody lets go of anything
        yard.want(n)

    wait_until(lambda: len(yard.carried) == 2)
    assert len(yard.started) == 2
    yard.let_go.release(10)
    wait_until(lambda: yard.left == 2)
    assert sorted(yard.carried) == [UUID(int=n) for n in range(10)], "each once"
    assert len(yard.started) == 2, "one after the other, by the same two"
    assert not yard.children.are_busy


def test_a_turn_can_be_wanted_again_once_it_was_let_go() -> None:
    yard = Yard()
    yard.let_go.release(2)
    yard.want(1)
    wait_until(lambda: yard.left == 1)

    yard.want(1)

    wait_until(lambda: yard.left == 2)
    assert yard.carried == [UUID(int=1)] * 2


@pytest.mark.parametrize("fault", [OSError("no process"), RuntimeError("something else")])
def test_a_child_that_cannot_be_had_costs_no_place(fault: Exception) -> None:
    yard = Yard()
    faults = [fault] * 5

    def start() -> Child:
        if faults:
            raise faults.pop()
        return Standing(yard)

    children = Children(1, start=start)
    for n in range(6):
        children.want(Suspect(UUID(int=n), lambda: False, _nobody_is_dead))
    yard.let_go.release()

    wait_until(lambda: yard.left == 1)
    assert yard.carried == [UUID(int=5)]


def test_a_suspect_for_which_there_is_no_thread_can_be_wanted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard()
    yard.let_go.release()

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        yard.want(1)

    yard.want(1)
    wait_until(lambda: yard.left == 1)
    assert yard.carried == [UUID(int=1)]


def test_a_process_that_leaves_forgets_who_waits_and_stops_its_children() -> None:
    yard = Yard()
    for n in range(5):
        yard.want(n)
    wait_until(lambda: len(yard.carried) == 2)

    yard.children.stop()
    yard.want(9)

    wait_until(lambda: yard.left == 2)
    assert len(yard.carried) == 2


def test_what_a_dead_child_held_is_taken_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dead: list[str] = []
    started: list[Child] = []

    def start() -> Child:
        started.append(Child())
        return started[-1]

    real = subprocess.Popen

    def sleeper(_command: list[str], **how: object) -> subprocess.Popen[bytes]:
        """Stands for a child in a tool: all it does is to be killed."""
        return real([sys.executable, "-c", "import time; time.sleep(600)"], **how)  # type: ignore[call-overload]

    monkeypatch.setattr(solo.subprocess, "Popen", sleeper)
    children = Children(1, start=start)
    children.want(Suspect(UUID(int=1), lambda: False, dead.append))
    wait_until(lambda: children.are_busy)
    worker = started[0].worker
    parsed = identity.Identity.parse(worker)

    assert parsed is not None and parsed.is_alive  # noqa: PT018
    assert parsed.pid == started[0].pid
    os.kill(started[0].pid, signal.SIGKILL)

    wait_until(lambda: dead == [worker])
    assert not parsed.is_alive
