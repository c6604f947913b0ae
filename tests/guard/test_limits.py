"""requests_per_minute and tokens_per_minute, across all workers: no more than they allow, and a place for who waits.

AC-21.
"""

from __future__ import annotations

import threading
import time

import pytest

from orchestration.errors import ErrorClass
from orchestration.guarding import GuardedCall, Held, HeldBy, Permit
from orchestration.providers.settings import Api, ProviderSettings
from persistence.records.usage import Usage
from tests.guard.bench import Fleet, Worker, until

PACED = HeldBy.OWN_LIMITS


def assert_about(wait_s: float, expected_s: float, began: float) -> None:
    """That a wait is what it should be, given that the limits fill up while the test runs."""
    assert expected_s - (time.monotonic() - began) - 0.05 <= wait_s <= expected_s + 0.05


def let_in(workers: list[Worker], calls: int, **changes: object) -> list[Permit | Held]:
    return [workers[n % len(workers)].asks(workers[n % len(workers)].call(**changes)) for n in range(calls)]


def test_calls_up_to_a_tenth_of_the_minute_are_let_in_at_once_and_the_others_have_their_places(fleet: Fleet) -> None:
    workers = fleet.workers(3, requests_per_minute=60)

    began = time.monotonic()
    found = let_in(workers, 12)

    assert [type(f) for f in found[:6]] == [Permit] * 6
    waits = [f.wait_s for f in found[6:] if isinstance(f, Held)]
    assert [f.by for f in found[6:] if isinstance(f, Held)] == [PACED] * 6
    for n, wait_s in enumerate(waits, 1):
        assert_about(wait_s, n, began)


def test_threads_of_several_workers_never_exceed_the_rate_together(fleet: Fleet) -> None:
    workers = fleet.workers(4, requests_per_minute=600)
    began, counted, lock, over = time.monotonic(), [], threading.Lock(), threading.Event()  # type: ignore[var-annotated]

    def work(worker: Worker) -> None:
        while not over.is_set():
            call = worker.call()
            while isinstance(held := worker.asks(call), Held):
                if over.wait(held.wait_s):
                    return
            with lock:
                counted.append(time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(workers[n % 4],)) for n in range(12)]
    for thread in threads:
        thread.start()
    until(lambda: len(counted) >= 75)
    over.set()
    for thread in threads:
        thread.join()

    # 60 at once, then 10 a second: at every instant there were no more than that.
    most = [60 + 10 * at + 1 for at in sorted(counted)]
    assert all(n <= m for n, m in enumerate(most, 1))


def test_a_turn_that_waited_for_its_place_is_let_in_without_being_counted_again(fleet: Fleet) -> None:
    one, other = fleet.workers(2, requests_per_minute=60)
    let_in([one, other], 6)
    call = one.call()
    first, second = one.is_held(call, by=PACED), one.is_held(call, by=PACED)
    assert second.wait_s <= first.wait_s

    until(lambda: isinstance(other.asks(call), Permit))


def test_tokens_are_taken_by_the_size_of_a_request_and_given_back_by_its_usage(fleet: Fleet) -> None:
    began = time.monotonic()
    one, other = fleet.workers(2, tokens_per_minute=60_000)
    call = one.call(tokens=lambda: 5_000)
    permit = one.is_let_in(call)
    assert permit.reserved_tokens == 5_000
    assert_about(other.is_held(other.call(tokens=lambda: 5_000), by=PACED).wait_s, 4.0, began)

    one.answers(call, permit, usage=Usage(input_tokens=800, output_tokens=200))

    # 6000 at most, 1000 used, 5000 reserved by the one that waits.
    assert_about(other.is_held(other.call(tokens=lambda: 1_000), by=PACED).wait_s, 1.0, began)


def test_what_was_used_beyond_the_estimate_is_taken_later(fleet: Fleet) -> None:
    began = time.monotonic()
    one, other = fleet.workers(2, tokens_per_minute=60_000)
    call = one.call(tokens=lambda: 1_000)
    permit = one.is_let_in(call)
    one.answers(call, permit, usage=Usage(input_tokens=15_000))

    assert_about(other.is_held(other.call(tokens=lambda: 1_000), by=PACED).wait_s, 10.0, began)


def test_what_was_read_from_the_cache_does_not_count_at_anthropic(fleet: Fleet) -> None:
    settings = ProviderSettings(fleet.name, Api.ANTHROPIC, tokens_per_minute=60_000)
    worker = fleet.worker({fleet.name: settings})
    call = worker.call(tokens=lambda: 6_000)
    permit = worker.is_let_in(call)
    worker.answers(call, permit, usage=Usage(input_tokens=500, cache_read_tokens=20_000, output_tokens=500))

    worker.is_let_in(worker.call(tokens=lambda: 5_000))


@pytest.mark.parametrize(
    ("kind", "how"),
    [(ErrorClass.RATE_LIMIT, {"status": 429, "retry_after_s": 0.0}), (ErrorClass.CONNECT, {"was_sent": False})],
)
def test_a_call_that_was_refused_or_never_sent_gives_its_tokens_back(
    fleet: Fleet, kind: ErrorClass, how: dict[str, object]
) -> None:
    one, other = fleet.workers(2, tokens_per_minute=60_000)
    call = one.call(tokens=lambda: 6_000)
    one.fails(kind, call, one.is_let_in(call), **how)

    other.is_let_in(other.call(model="another", tokens=lambda: 6_000))


def test_a_request_that_is_larger_than_what_is_ever_there_waits_for_as_much_as_there_can_be(fleet: Fleet) -> None:
    began = time.monotonic()
    (worker,) = fleet.workers(1, tokens_per_minute=60_000)

    worker.is_let_in(worker.call(tokens=lambda: 30_000))

    assert_about(worker.is_held(worker.call(tokens=lambda: 30_000), by=PACED).wait_s, 30.0, began)


def test_a_line_longer_than_an_hour_gives_no_more_places(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1, requests_per_minute=1)
    waits = [f.wait_s for f in let_in([worker], 100) if isinstance(f, Held)]

    assert max(waits) <= 3600.0
    assert all(w >= 1800.0 for w in waits[-30:])


def test_providers_of_a_group_share_one_limit_and_others_have_their_own(fleet: Fleet) -> None:
    names = [f"{fleet.name}-{n}" for n in range(3)]
    groups = (fleet.name, fleet.name, None)
    providers = {
        n: ProviderSettings(n, Api.OPENAI_CHAT, quota_group=g, requests_per_minute=6)
        for n, g in zip(names, groups, strict=True)
    }
    first, second, separate = (fleet.worker(providers, name) for name in names)
    first.is_let_in()

    second.is_held(by=PACED)
    separate.is_let_in()


def test_the_size_of_a_request_is_not_even_asked_for_without_a_limit_on_tokens(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1, requests_per_minute=60)

    def not_asked() -> int:
        raise AssertionError("nobody needs it")

    worker.is_let_in(worker.call(tokens=not_asked))


def test_a_held_call_and_its_limit_are_told_apart(fleet: Fleet) -> None:
    one, other = fleet.workers(2, requests_per_minute=60)
    one.is_limited(20.0)

    call: GuardedCall = other.call()
    assert other.is_held(call).by is HeldBy.COOLING_DOWN
