"""Which of several keys a call gets: not one that was just refused or limited, for any worker."""

from __future__ import annotations

import pytest

from orchestration.errors import ErrorClass
from orchestration.guarding import HeldBy
from orchestration.providers.settings import Api, ProviderSettings
from tests.guard.bench import Fleet

KEYS = ("0f3a", "77c1", "b2e9")


@pytest.mark.parametrize("kind", [ErrorClass.RATE_LIMIT, ErrorClass.BILLING, ErrorClass.AUTH])
def test_a_key_that_was_refused_is_passed_over_by_every_worker(fleet: Fleet, kind: ErrorClass) -> None:
    one, other = fleet.workers(2, keys=KEYS)

    advice = one.fails(kind, permit=one.is_let_in())

    assert advice.other_keys == 2
    assert advice.wait_s is None
    assert one.is_let_in().key == 1
    assert other.is_let_in().key == 1


def test_only_when_all_keys_are_limited_a_call_waits_for_the_first_of_them(fleet: Fleet) -> None:
    one, other = fleet.workers(2, keys=KEYS)
    left = [one.is_limited(wait_s, permit=one.is_let_in()).other_keys for wait_s in (60.0, 20.0, 40.0)]

    assert left == [2, 1, 0]
    assert 10.0 < other.is_held().wait_s < 21.0


def test_another_model_may_still_use_a_key_that_is_limited_and_none_that_has_no_money(fleet: Fleet) -> None:
    one, other = fleet.workers(2, keys=KEYS)
    one.is_limited(60.0)
    assert other.is_let_in(other.call(model="small")).key == 0

    one.fails(ErrorClass.BILLING)
    other.guard.look()
    assert other.is_let_in(other.call(model="small")).key == 1


def test_when_every_key_was_refused_a_turn_with_another_model_is_told_so_and_the_last_one_tries(fleet: Fleet) -> None:
    one, other = fleet.workers(2, keys=KEYS)
    for kind in (ErrorClass.BILLING, ErrorClass.AUTH, ErrorClass.BILLING):
        one.fails(kind, permit=one.is_let_in())

    assert other.is_held(by=HeldBy.NO_USABLE_KEY).wait_s <= 300.0
    assert other.is_let_in(other.call(is_last=True)).key == 1  # the one that may be back first


def test_a_key_that_is_accepted_again_is_a_key_like_any_other(fleet: Fleet) -> None:
    one, other = fleet.workers(2, keys=KEYS[:1])
    one.fails(ErrorClass.BILLING)
    other.is_held(by=HeldBy.NO_USABLE_KEY)
    call = other.call(is_last=True)
    other.answers(call, other.is_let_in(call))

    one.guard.look()
    one.is_let_in()


def test_keys_of_one_quota_group_are_limited_together(fleet: Fleet) -> None:
    settings = ProviderSettings(fleet.name, Api.OPENAI_CHAT, quota_group=fleet.name)
    worker = fleet.worker({fleet.name: settings}, keys=KEYS)

    advice = worker.is_limited(20.0)

    assert advice.other_keys == 0
    assert advice.wait_s is not None
    worker.is_held()


def test_the_order_in_which_keys_are_asked_for_is_kept(fleet: Fleet) -> None:
    one, other = fleet.workers(2, keys=KEYS)
    one.is_limited(60.0)

    assert other.is_let_in(other.call(keys=("b2e9", "0f3a", "77c1"))).key == 0
    assert other.is_let_in(other.call(keys=("0f3a", "b2e9", "77c1"))).key == 1
