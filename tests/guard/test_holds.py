"""A rate limit that one worker ran into holds all of them, and they come back one by one.

AC-20, AC-21.
"""

from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

import pytest

from orchestration.errors import ErrorClass
from orchestration.guarding import Held, Permit
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.quota import Meter, Quota
from persistence.records.usage import Usage
from tests.guard.bench import Fleet, until


def test_nothing_is_held_and_nothing_is_written_while_all_goes_well(fleet: Fleet) -> None:
    for worker in fleet.workers(2):
        call = worker.call()
        worker.answers(call, worker.is_let_in(call), quota=Quota(requests=Meter(59, 60, 1.0)))

    assert fleet.name not in fleet.everything()


def test_a_429_holds_every_worker_and_says_for_how_long(fleet: Fleet) -> None:
    one, other = fleet.workers(2)

    advice = one.is_limited(20.0)

    assert advice.wait_s is not None
    assert 20.0 <= advice.wait_s < 20.5
    for worker in (one, other):
        assert 10.0 < worker.is_held().wait_s < 22.0


def test_the_longest_retry_after_counts(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(5.0)
    other.is_limited(30.0)
    one.is_limited(1.0)

    assert one.is_held().wait_s > 29.0


def test_another_model_and_another_provider_are_not_held(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(20.0)

    other.is_let_in(other.call(model="small"))


def test_a_quota_group_is_held_as_a_whole(fleet: Fleet) -> None:
    names = [f"{fleet.name}-{n}" for n in range(3)]
    groups = (fleet.name, fleet.name, None)
    providers = {n: ProviderSettings(n, Api.OPENAI_CHAT, quota_group=g) for n, g in zip(names, groups, strict=True)}
    first, second, separate = (fleet.worker(providers, name) for name in names)

    first.is_limited(20.0)

    second.is_held(second.call(model="another"))
    separate.is_let_in()


def test_after_the_hold_the_calls_come_back_one_by_one_and_ever_faster(fleet: Fleet) -> None:
    workers = fleet.workers(4)
    workers[0].is_limited(10.0)

    waits = sorted(workers[n % 4].is_held().wait_s for n in range(40))

    after = [w - waits[0] for w in waits]
    assert sum(w < 1.0 for w in after) <= 10
    assert all(b > a for a, b in pairwise(after))
    assert after[-1] < 8.0
    rates = [sum(s <= w < s + 1 for w in after) for s in range(4)]
    assert rates[0] < rates[3]


def test_a_turn_keeps_its_place_and_is_let_in_when_it_has_come(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(1.0)
    call = one.call()
    place = one.is_held(call)
    for _ in range(20):
        other.is_held()

    until(lambda: isinstance(one.asks(call), Permit))

    assert place.wait_s < 1.5
    other.is_held()  # twenty others still stand in line


def test_who_was_refused_has_the_next_place(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    call = one.call()
    advice = one.is_limited(1.0, call)
    behind = [other.is_held().wait_s for _ in range(5)]

    assert advice.wait_s is not None
    assert advice.wait_s < min(behind)
    until(lambda: isinstance(one.asks(call), Permit))


def test_without_a_word_of_when_to_come_back_the_holds_grow_from_refusal_to_refusal(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1)
    waits: list[float] = []
    for _ in range(2):
        call = worker.call()
        until(lambda call=call: isinstance(worker.asks(call), Permit))
        waits.append(worker.is_limited(None, call).wait_s or 0.0)

    assert 1.0 <= waits[0] < 1.2
    assert 2.0 <= waits[1] < 2.3


def test_refusals_of_calls_that_were_under_way_are_one_and_the_same(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1)
    for _ in range(30):
        worker.is_limited(None)

    assert worker.is_held().wait_s < 10.0


def test_calls_that_nobody_knew_of_come_back_one_by_one_too(fleet: Fleet) -> None:
    workers = fleet.workers(4)
    workers[0].is_limited(60.0)
    fleet.end_hold(workers[0])

    found = [workers[n % 4].asks() for n in range(30)]

    assert sum(isinstance(f, Permit) for f in found) <= 10
    assert isinstance(found[0], Permit)


def test_a_new_hold_makes_the_places_of_the_one_before_void(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(20.0)
    call = other.call()
    other.is_held(call)
    one.is_limited(40.0)
    fleet.end_hold(one)

    other.is_let_in(call)


def test_a_place_that_nobody_came_for_is_lost(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(20.0)
    late, in_time = other.call(), other.call()
    with fleet.redis as client:
        line = f"perdure:guard:line:{one.scope}"
        client.zadd(line, {str(late.turn_id): fleet.now_ms() - 130_000, str(in_time.turn_id): fleet.now_ms() - 1_000})
    fleet.end_hold(one, places=100)

    other.is_let_in(in_time)
    other.is_held(late)


def test_after_an_answer_the_holds_begin_small_again(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    for _ in range(4):
        one.is_limited(None)
        fleet.end_hold(one)
    call = other.call()
    other.answers(call, other.is_let_in(call))

    advice = one.is_limited(None)

    assert advice.wait_s is not None
    assert advice.wait_s < 1.5


def test_an_absurd_retry_after_is_not_believed(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.is_limited(1e9)

    assert other.is_held().wait_s <= 3600.0


def test_an_upstream_limit_holds_the_model_for_every_key(fleet: Fleet) -> None:
    one, other = fleet.workers(2, keys=("a", "b"))

    assert one.fails(ErrorClass.UPSTREAM_RATE_LIMIT, retry_after_s=20.0).other_keys == 0
    other.is_held()


def test_an_overload_holds_everybody_only_where_it_says_for_how_long(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    one.fails(ErrorClass.OVERLOADED)
    other.is_let_in()

    one.fails(ErrorClass.OVERLOADED, retry_after_s=20.0)
    other.is_held()


@pytest.mark.parametrize(
    ("quota", "wait_s"),
    [
        (Quota(requests=Meter(0, 60, 600.0)), 10.0),
        (Quota(tokens=Meter(50, 1_000, 190.0)), 10.0),
        (Quota(requests=Meter(1, 60, 60.0), tokens=Meter(900, 1_000, 1.0)), None),
        (Quota(requests=Meter(0, 60, None)), None),
        (Quota(requests=Meter(0, 60_000, 60.0)), None),
    ],
)
def test_a_quota_that_an_answer_says_is_used_up_holds_everybody_until_there_is_some_again(
    fleet: Fleet, quota: Quota, wait_s: float | None
) -> None:
    one, other = fleet.workers(2)

    one.answers(usage=Usage(input_tokens=100), quota=quota)

    if wait_s is None:
        other.is_let_in()
    else:
        assert wait_s - 8.0 < other.is_held().wait_s < wait_s + 0.5


def test_what_one_process_learned_another_knows_without_asking_before_each_call(fleet: Fleet) -> None:
    one, other = fleet.workers(2)
    other.guard.look()
    one.is_limited(20.0)

    def is_known() -> bool:
        return isinstance(other.asks(), Held)

    other.guard.look()  # what its service thread does
    assert is_known()


def test_no_key_and_no_answer_is_in_redis(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1, keys=("0f3a", "77c1"), requests_per_minute=60)
    worker.is_let_in()
    worker.is_limited(5.0)
    worker.fails(ErrorClass.BILLING)

    assert fleet.name in fleet.everything()
    assert "sk-" not in fleet.everything()


def test_everything_in_redis_expires(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1, keys=("a", "b"), requests_per_minute=60, tokens_per_minute=600)
    worker.is_let_in()
    for _ in range(6):
        worker.fails(ErrorClass.CONNECT, was_sent=False)
    worker.fails(ErrorClass.AUTH)
    worker.is_limited(5.0)
    worker.asks()

    with fleet.redis as client:
        names = list(client.scan_iter("perdure:guard:*"))
        assert len([n for n in names if fleet.name in n]) >= 4
        assert all(0 < client.pttl(name) <= 2 * 3600 * 1000 for name in names)


def test_a_call_that_was_stopped_leaves_nothing_behind(fleet: Fleet) -> None:
    (worker,) = fleet.workers(1)
    call = worker.call(uuid4())
    worker.guard.dropped(call, worker.is_let_in(call))

    assert fleet.name not in fleet.everything()
