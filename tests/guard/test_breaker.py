"""An endpoint that keeps failing is left alone by everybody; then one tries whether it is back.

AC-21 with a refused connection and with 500.
"""

from __future__ import annotations

import pytest

from orchestration.errors import ErrorClass
from orchestration.guarding import HeldBy, Permit
from tests.guard.bench import Fleet, Worker

DOWN = HeldBy.ENDPOINT_DOWN
FAULTS = [
    ErrorClass.CONNECT,
    ErrorClass.CONNECT_TIMEOUT,
    ErrorClass.FIRST_TOKEN_TIMEOUT,
    ErrorClass.IDLE_TIMEOUT,
    ErrorClass.TIMEOUT,
    ErrorClass.SERVER_ERROR,
    ErrorClass.OVERLOADED,
]


def trips(workers: list[Worker], kind: ErrorClass, times: int = 5) -> None:
    for n in range(times):
        workers[n % len(workers)].fails(kind, was_sent=False)


def opened(fleet: Fleet, worker: Worker, scope: str) -> None:
    """Let the time come at which one may try."""
    with fleet.redis as client:
        client.hset(f"perdure:guard:breaker:{scope}", "until", 1)
    worker.guard.look()


@pytest.mark.parametrize("kind", FAULTS)
def test_five_failures_running_of_all_workers_together_open_it(fleet: Fleet, kind: ErrorClass) -> None:
    workers = fleet.workers(2)
    trips(workers, kind, 4)
    workers[0].is_let_in()

    trips(workers, kind, 1)

    for worker in workers:
        assert 5.0 < worker.is_held(by=DOWN).wait_s < 11.0


@pytest.mark.parametrize("kind", [e for e in ErrorClass if e not in FAULTS])
def test_no_other_failure_opens_it(fleet: Fleet, kind: ErrorClass) -> None:
    workers = fleet.workers(2)
    for _ in range(8):
        workers[0].fails(kind, workers[0].call(model="another"), usage=None)

    workers[1].is_let_in()


@pytest.mark.parametrize("kind", FAULTS)
def test_an_answer_between_the_failures_begins_the_count_anew(fleet: Fleet, kind: ErrorClass) -> None:
    workers = fleet.workers(2)
    trips(workers, kind, 4)
    workers[1].guard.look()
    call = workers[1].call()
    workers[1].answers(call, workers[1].is_let_in(call))
    trips(workers, kind, 4)

    workers[0].is_let_in()


def test_an_endpoint_that_cannot_be_reached_is_down_for_all_of_its_models(fleet: Fleet) -> None:
    workers = fleet.workers(2)
    trips(workers, ErrorClass.CONNECT)

    workers[1].is_held(workers[1].call(model="small"), by=DOWN)


def test_a_model_that_does_not_answer_is_no_reason_to_leave_the_others(fleet: Fleet) -> None:
    workers = fleet.workers(2)
    trips(workers, ErrorClass.FIRST_TOKEN_TIMEOUT)

    workers[1].is_let_in(workers[1].call(model="small"))


def test_one_tries_while_the_others_wait_and_an_answer_lets_all_in(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    trips([one, other], ErrorClass.CONNECT)
    opened(fleet, one, fleet.name)

    probe = one.call()
    permit = one.is_let_in(probe)
    assert permit.is_probe
    assert 0 < other.is_held(by=DOWN).wait_s <= 6.0
    assert isinstance(one.asks(probe), Permit)  # after a crash, its turn tries on
    one.answers(probe, permit)

    other.guard.look()
    other.is_let_in()


def test_a_probe_that_fails_keeps_it_closed_for_twice_as_long(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    trips([one, other], ErrorClass.CONNECT)
    for longest in (20.0, 40.0):
        opened(fleet, one, fleet.name)
        probe = one.call()
        one.fails(ErrorClass.CONNECT, probe, one.is_let_in(probe), was_sent=False)

        assert longest - 8 < other.is_held(by=DOWN).wait_s < longest + 1


def test_a_straggler_says_nothing_new(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    trips([one, other], ErrorClass.CONNECT, 30)

    assert other.is_held(by=DOWN).wait_s < 12.0


def test_a_straggler_does_not_close_it_again_once_the_time_to_try_has_come(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    trips([one, other], ErrorClass.CONNECT)
    opened(fleet, one, fleet.name)
    one.fails(ErrorClass.CONNECT, was_sent=False)

    assert other.is_let_in().is_probe


def test_a_probe_that_was_stopped_leaves_its_place_to_another(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    trips([one, other], ErrorClass.CONNECT)
    opened(fleet, one, fleet.name)
    probe = one.call()
    one.guard.dropped(probe, one.is_let_in(probe))

    assert other.is_let_in().is_probe


@pytest.mark.parametrize("kind", [ErrorClass.RATE_LIMIT, ErrorClass.FORMAT_ERROR, ErrorClass.AUTH])
def test_a_refusal_shows_that_the_endpoint_is_back(fleet: Fleet, kind: ErrorClass) -> None:
    one, other = fleet.workers(2)
    trips([one, other], ErrorClass.CONNECT)
    opened(fleet, one, fleet.name)
    probe = one.call()
    one.fails(kind, probe, one.is_let_in(probe), status=400)

    other.guard.look()
    other.is_let_in(other.call(model="small"))
