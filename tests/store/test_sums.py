"""What turns cost together: nothing is left out, nothing counted twice, and what is not known stays so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from persistence import sums
from persistence.errors import NotFound
from persistence.records.outcome import Outcome
from persistence.records.spending import By
from persistence.records.usage import Usage
from persistence.sums import Sum
from tests.store.outcomes import claimed, model_call, store
from tests.support.workbench import Bench

CENT = Decimal("0.01")


def spent(bench: Bench, *, tenant: str | None = None, cost: Decimal | None = CENT, parent: UUID | None = None) -> UUID:
    """A turn with one attempt of 10 tokens in and 2 out, of a tenant or under a parent of its own."""
    turn = claimed(bench)
    call = replace(model_call(turn, usage=Usage(10, 2)), cost_usd=cost)
    store(bench, turn, Outcome(turn.counters, model_call=call))
    if tenant is not None:
        params = {"id": turn.id, "tenant": UUID(int=hash(tenant) % 2**64), "name": tenant}
        bench.database.rows(
            "INSERT INTO tenants (id, name) VALUES (%(tenant)s, %(name)s) ON CONFLICT DO NOTHING", params
        )
        bench.database.rows("UPDATE turns SET tenant_id = %(tenant)s WHERE id = %(id)s", params)
    if parent is not None:
        params = {"id": turn.id, "parent": parent}
        bench.database.rows("UPDATE turns SET parent_turn_id = %(parent)s WHERE id = %(id)s", params)
    return turn.id


def told(found: Sum) -> tuple[int, int, Decimal | None]:
    return found.turns, found.usage.total, found.spending.total_usd


def test_the_turns_of_a_tenant_are_added_up_and_no_others(bench: Bench) -> None:
    for tenant in ("sums-a", "sums-a", "sums-b"):
        spent(bench, tenant=tenant)

    by_tenant = {s.name: told(s) for s in sums.grouped(bench.database, By.TENANT)}

    assert (by_tenant["sums-a"], by_tenant["sums-b"]) == ((2, 24, 2 * CENT), (1, 12, CENT))
    assert [s.name for s in sums.grouped(bench.database, By.TENANT, tenant="sums-b")] == ["sums-b"]
    [of_agent] = sums.grouped(bench.database, By.AGENT, tenant="sums-a")
    assert (of_agent.name, told(of_agent)) == ("bench", (2, 24, 2 * CENT))
    [of_no_batch] = sums.grouped(bench.database, By.BATCH, tenant="sums-a")
    assert of_no_batch.name is None


def test_a_sum_with_a_price_missing_is_not_known(bench: Bench) -> None:
    spent(bench, tenant="sums-c")
    spent(bench, tenant="sums-c", cost=None)

    [found] = sums.grouped(bench.database, By.TENANT, tenant="sums-c")

    assert told(found) == (2, 24, None)
    assert (found.spending.cost_usd, found.spending.unpriced_attempts) == (CENT, 1)


def test_turns_from_before_are_left_out(bench: Bench) -> None:
    old = spent(bench, tenant="sums-d")
    spent(bench, tenant="sums-d")
    bench.database.rows("UPDATE turns SET created_at = now() - interval '9 days' WHERE id = %(id)s", {"id": old})

    [found] = sums.grouped(bench.database, By.TENANT, tenant="sums-d", since=datetime.now(UTC) - timedelta(days=7))

    assert found.turns == 1
    assert sums.grouped(bench.database, By.TENANT, tenant="sums-d", since=datetime.now(UTC) + timedelta(days=1)) == []


def test_a_tree_is_a_turn_and_all_below_it(bench: Bench) -> None:
    root = spent(bench)
    child = spent(bench, parent=root)
    spent(bench, parent=child)
    spent(bench)

    assert told(sums.tree(bench.database, root)) == (3, 36, 3 * CENT)
    assert told(sums.tree(bench.database, child)) == (2, 24, 2 * CENT)


def test_what_is_not_there_is_told(bench: Bench) -> None:
    with pytest.raises(NotFound, match="known are default"):
        sums.grouped(bench.database, By.TENANT, tenant="nobody")
    with pytest.raises(NotFound, match="no turn"):
        sums.tree(bench.database, UUID(int=7))
