"""Turns of several workers under a rate limit, a dead endpoint and refused keys, with a real guard and a real provider.

AC-20, AC-21: one 429 holds all who share its quota, and the calls after it come back one by one;
no attempt is spent on waiting; a fallback is asked meanwhile, and the next turn knows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from itertools import count, pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, calls, html, reply, status
from orchestration.providers.catalog import connect
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.runtime import Runtime
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from persistence.records.turn import Turn
from tests.guard.bench import until
from tests.support.provider import ScriptedProvider, key_digest, provider
from tests.support.workbench import Bench
from workers.rate_guard.guard import RedisRateGuard

__all__ = ["provider"]

FIRST, SECOND = "sk-first-0123456789", "sk-second-0123456789"


class Yard:
    """Workers with a guard of their own each, over the same Redis and the same configuration."""

    def __init__(self, bench: Bench, redis_url: str, url: str, stack: ExitStack) -> None:
        self.bench = bench
        self.url = url
        self.name = f"y{uuid4().hex[:8]}"
        self._redis_url = redis_url
        self._stack = stack
        self.providers: dict[str, ProviderSettings] = {}

    def provider(self, name: str = "main", **settings: Any) -> str:
        """Configure a provider; its whole name."""
        whole = f"{self.name}-{name}"
        api = settings.pop("api", Api.OPENAI_CHAT)
        base_url = settings.pop("base_url", self.url if api is Api.ANTHROPIC else f"{self.url}/v1")
        self.providers[whole] = ProviderSettings(whole, api, base_url, settings.pop("api_keys", ()), **settings)
        return whole

    def worker(self) -> Runtime:
        clients = {n: self._stack.enter_context(closing(connect(p))) for n, p in self.providers.items()}
        guard = self._stack.enter_context(closing(RedisRateGuard(self._redis_url, self.providers)))
        return self.bench.runtime(f"worker-{uuid4().hex[:6]}", models=clients.__getitem__, guard=guard)

    def events(self, turn_id: UUID, kind: str) -> list[dict[str, Any]]:
        rows = self.bench.everything(turn_id)["events"]
        return [r["payload"] for r in sorted(rows, key=lambda r: r["seq"]) if r["type"] == kind]


@pytest.fixture
def yard(bench: Bench, redis_url: str, provider: ScriptedProvider) -> Generator[Yard]:
    with ExitStack() as stack:
        yield Yard(bench, redis_url, provider.url, stack)


def limited_for(seconds: float, retry_after_s: float | None) -> Callable[[Asked], Answer]:
    """A policy that refuses everything for so long after the first request."""
    began: list[float] = []

    def answer(_asked: Asked) -> Answer:
        began.append(time.monotonic())
        return status(429, retry_after=retry_after_s) if began[-1] - began[0] < seconds else reply("Done.")

    return answer


def gaps(provider: ScriptedProvider, script: str) -> list[float]:
    times = sorted(r.monotonic for r in provider.requests(script))
    return [b - a for a, b in pairwise(times)]


def test_retry_after_is_kept_for_everything_that_shares_the_quota_and_costs_no_attempt(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    """AC-20."""
    first, second = (yard.provider(n, quota_group=yard.name) for n in ("one", "two"))
    policy = [status(429, retry_after=1), status(429, retry_after=1)]
    model = provider.script("main", [reply("Done.")], faults=policy, repeat_last=True)
    turn_ids = [bench.submit(model=f"{p}:{model}") for p in (first, second)]

    turns = [bench.start(t, yard.worker()) for t in turn_ids]

    assert [t().exit_reason for t in turns] == [ExitReason.FINAL_ANSWER] * 2
    # The two refusals may have met both turns at once; whatever came later kept its distance from them.
    assert sum(r.answer == 429 for r in provider.requests("main")) == 2
    refused_at = max(r.monotonic for r in provider.requests("main") if r.answer == 429)
    after = [r.monotonic for r in provider.requests("main") if r.answer == 200]
    assert all(at - refused_at >= 1.0 for at in after)
    assert len(provider.requests("main")) == 4


def test_without_a_usable_retry_after_the_pauses_grow(yard: Yard, bench: Bench, provider: ScriptedProvider) -> None:
    """AC-20: a header that is missing, that makes no sense, and that says at once."""
    ended: list[Callable[[], Turn]] = []
    for n, retry_after in enumerate([None, "garbage", "0"]):
        refused = status(429, retry_after=retry_after)
        model = provider.script(f"main{n}", [reply("Done.")], faults=[refused, refused])
        name = yard.provider(f"main{n}")
        ended.append(bench.start(bench.submit(model=f"{name}:{model}"), yard.worker()))

    assert [turn().exit_reason for turn in ended] == [ExitReason.FINAL_ANSWER] * 3
    for n in range(3):
        first, second = gaps(provider, f"main{n}")
        assert first >= 1.0
        assert second >= 2.0


def test_one_refusal_holds_the_turns_of_all_workers_and_they_come_back_without_a_burst(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    """AC-21."""
    seconds, turns = 1.5, 24
    name = yard.provider()
    model = provider.script("main", limited_for(seconds, 1.0), count="turn")
    workers = [yard.worker() for _ in range(4)]
    turn_ids = [bench.submit(model=f"{name}:{model}", attempts=3) for _ in range(turns)]

    found = [bench.start(t, workers[n % 4]) for n, t in enumerate(turn_ids)]
    reasons = [f().exit_reason for f in found]

    assert reasons == [ExitReason.FINAL_ANSWER] * turns
    requests = sorted(
        r.monotonic - min(q.monotonic for q in provider.requests("main")) for r in provider.requests("main")
    )
    inside = [at for at in requests if at < seconds]
    assert len(inside) < turns * 3 / 2
    assert sum(at > 0.9 for at in inside) <= 8  # after the first refusals, only a few look whether it is over
    over = min(at for at in requests if at >= seconds)
    assert sum(over <= at < over + 1 for at in requests) <= 10
    assert any(yard.events(t, "model.held") for t in turn_ids)


@pytest.mark.parametrize("broken", [status(500), html(502)])
def test_an_endpoint_that_fails_everybody_is_not_asked_three_times_by_each(
    yard: Yard, bench: Bench, provider: ScriptedProvider, broken: Answer
) -> None:
    """AC-21 with 500."""
    model = provider.script("main", [broken], repeat_last=True)
    name, workers = yard.provider(), [yard.worker() for _ in range(4)]
    turn_ids = [bench.submit(model=f"{name}:{model}", retry_in_place_s=5.0) for _ in range(20)]

    for get in [bench.start(t, workers[n % 4]) for n, t in enumerate(turn_ids)]:
        get()

    assert len(provider.requests("main")) <= 20 + 5
    waiting = [bench.row(t) for t in turn_ids if bench.row(t)["status"] == "waiting"]
    assert waiting
    assert {r["waiting_for"] for r in waiting} == {WaitingFor.RETRY}


def test_a_refused_connection_is_left_alone_by_everybody_and_the_fallback_answers(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    """AC-21 with a refused connection, AC-25."""
    dead = yard.provider("dead", base_url="http://127.0.0.1:9/v1")
    spare = yard.provider("spare", api=Api.ANTHROPIC)
    model = provider.script("main", [reply("Done.")], repeat_last=True)
    workers = [yard.worker() for _ in range(2)]
    chain: dict[str, Any] = {"model": f"{dead}:{model}", "fallbacks": (f"{spare}:{model}",)}
    for n in range(4):
        bench.run(bench.submit(**chain), workers[n % 2])

    turn_id = bench.submit(**chain)
    workers[1].guard.look()  # type: ignore[attr-defined]
    turn = bench.run(turn_id, workers[1])

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert not yard.events(turn_id, "model.failed")
    (fallback,) = yard.events(turn_id, "model.fallback")
    assert fallback["error"] == "endpoint_down"


def test_a_turn_that_is_held_for_long_gives_its_worker_up_and_ends_well_later(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    """AC-20."""
    name = yard.provider()
    model = provider.script("main", [reply("Done.")], faults=[status(429, retry_after=60)])
    first, second = bench.submit(model=f"{name}:{model}"), bench.submit(model=f"{name}:{model}")
    one, other = yard.worker(), yard.worker()
    bench.run(first, one)

    held = bench.run(second, other)

    assert (held.status, bench.row(second)["waiting_for"]) == (TurnStatus.WAITING, WaitingFor.RETRY)
    assert (held.counters.attempts, len(provider.requests("main"))) == (0, 1)
    assert yard.events(second, "model.held")[0]["by"] == "cooling_down"


def forget_holds(yard: Yard, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for name in client.scan_iter(f"perdure:guard:*{yard.name}*"):
            client.delete(name)


def test_the_next_turn_begins_with_the_fallback_while_the_primary_cools_down_and_with_the_primary_after(
    yard: Yard, bench: Bench, provider: ScriptedProvider, redis_url: str
) -> None:
    """AC-20, AC-25: the turn says who answers, and why; so does a turn that is resumed."""
    primary, spare = yard.provider("primary"), yard.provider("spare", api=Api.ANTHROPIC)
    main = provider.script("main", [reply("From the primary.")], faults=[status(429, retry_after=90)], repeat_last=True)
    other = provider.script("other", [reply("From the spare.")], repeat_last=True)
    chain: dict[str, Any] = {"model": f"{primary}:{main}", "fallbacks": (f"{spare}:{other}",)}
    worker = yard.worker()
    bench.run(bench.submit(**chain), worker)

    turn_id = bench.submit(**chain, system_prompt="Be brief.")
    bench.run(turn_id, worker)

    assert len(provider.requests("main")) == 1
    assert bench.view(turn_id).output_text == "From the spare."
    (fallback,) = yard.events(turn_id, "model.fallback")
    assert (fallback["to"], fallback["error"]) == (f"{spare}:{other}", "cooling_down")
    assert other in str((provider.requests("other")[-1].body or {})["system"])

    forget_holds(yard, redis_url)
    turn_id = bench.submit(**chain)
    bench.run(turn_id, yard.worker())
    assert bench.view(turn_id).output_text == "From the primary."
    assert not yard.events(turn_id, "model.fallback")


@pytest.mark.parametrize("code", [401, 402])
def test_a_primary_whose_only_key_was_refused_is_not_asked_again_by_the_next_turn_that_has_a_fallback(
    yard: Yard, bench: Bench, provider: ScriptedProvider, code: int
) -> None:
    """AC-25."""
    primary, spare = yard.provider("primary", api_keys=(FIRST,)), yard.provider("spare")
    main = provider.script("main", [status(code)], repeat_last=True)
    other = provider.script("other", [reply("From the spare.")], repeat_last=True)
    chain: dict[str, Any] = {"model": f"{primary}:{main}", "fallbacks": (f"{spare}:{other}",)}
    for _ in range(2):
        turn_id = bench.submit(**chain)
        bench.run(turn_id, yard.worker())

    assert len(provider.requests("main")) == 1
    assert yard.events(turn_id, "model.fallback")[0]["error"] == "no_usable_key"

    # Without a fallback it is worth a try, and the turn ends with what the provider says.
    turn = bench.run(bench.submit(model=f"{primary}:{main}"), yard.worker())
    assert (turn.exit_reason, len(provider.requests("main"))) == (ExitReason.PROVIDER_FAILED, 2)


def test_a_limit_takes_the_next_key_and_the_turn_says_which(
    yard: Yard, bench: Bench, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST_KEY", FIRST)
    name = yard.provider(api_keys=("env:FIRST_KEY", SECOND))
    model = provider.script("main", [calls(("look", {})), reply("Done.")], faults=[status(429, retry_after=60)])
    turn_id = bench.submit(model=f"{name}:{model}", attempts=1)

    turn = bench.run(turn_id, yard.worker())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    used = [r.headers["authorization"] for r in provider.requests("main")]
    assert used == [key_digest(k) for k in (FIRST, SECOND, SECOND)]
    assert [e["key"] for e in yard.events(turn_id, "model.failed")] == [1]
    assert [e["key"] for e in yard.events(turn_id, "model.answered")] == [2, 2]
    records = sorted(bench.everything(turn_id)["model_calls"], key=lambda r: r["position"])
    assert [r["key_label"] for r in records] == ["env:FIRST_KEY", "key 2", "key 2"], "a key itself is told by its place"
    assert not any(key in str(bench.everything(turn_id)) for key in (FIRST, SECOND))


@pytest.mark.parametrize("code", [401, 402])
def test_when_every_key_is_refused_the_turn_fails_after_one_try_of_each(
    yard: Yard, bench: Bench, provider: ScriptedProvider, code: int
) -> None:
    name = yard.provider(api_keys=(FIRST, SECOND))
    model = provider.script("main", [status(code)], repeat_last=True)

    turn = bench.run(bench.submit(model=f"{name}:{model}"), yard.worker())

    assert turn.exit_reason is ExitReason.PROVIDER_FAILED
    assert [r.headers["authorization"] for r in provider.requests("main")] == [key_digest(FIRST), key_digest(SECOND)]


def test_rotations_stay_counted_when_the_owner_dies_between_them(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    name = yard.provider(api_keys=(FIRST, SECOND))
    model = provider.script("main", [status(402)], repeat_last=True)
    turn_id = bench.submit(model=f"{name}:{model}")
    numbers = count()

    class Dies(BaseException):
        """The worker dies."""

    def dies_at_the_second(name: str) -> Any:
        if next(numbers) == 1:
            raise Dies
        return models(name)

    worker = yard.worker()
    models = worker.models
    with pytest.raises(Dies):
        bench.run(turn_id, bench.runtime("dying", models=dies_at_the_second, guard=worker.guard))
    bench.kill_owner(turn_id)

    turn = bench.run(turn_id, yard.worker())

    assert turn.exit_reason is ExitReason.PROVIDER_FAILED
    assert turn.counters.remedies["rotations"] == 1
    assert [r.headers["authorization"] for r in provider.requests("main")] == [key_digest(FIRST), key_digest(SECOND)]


def test_turns_keep_to_the_configured_requests_per_minute(yard: Yard, bench: Bench, provider: ScriptedProvider) -> None:
    name = yard.provider(requests_per_minute=600)
    model = provider.script("main", [reply("Done.")], count="turn", repeat_last=True)
    workers = [yard.worker() for _ in range(3)]
    turn_ids = [bench.submit(model=f"{name}:{model}") for _ in range(70)]

    found = [bench.start(t, workers[n % 3]) for n, t in enumerate(turn_ids)]

    assert {f().exit_reason for f in found} == {ExitReason.FINAL_ANSWER}
    times = sorted(r.monotonic for r in provider.requests("main"))
    assert all(n <= 60 + 10 * (at - times[0]) + 1 for n, at in enumerate(times, 1))


def test_an_interrupt_ends_a_turn_that_is_held(yard: Yard, bench: Bench, provider: ScriptedProvider) -> None:
    name, worker = yard.provider(), yard.worker()
    model = provider.script("main", [reply("Done.")], faults=[status(429, retry_after=25)])
    other = bench.start(bench.submit(model=f"{name}:{model}"), worker)
    provider.wait_for_requests("main", 1)
    turn_id = bench.submit(model=f"{name}:{model}")
    second = yard.worker()
    held = bench.start(turn_id, second)
    until(lambda: bool(yard.events(turn_id, "model.held")))

    for each in bench.turn_ids:
        bench.interrupt(each, worker, second)

    assert other().exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert held().exit_reason is ExitReason.INTERRUPTED_BY_USER


def test_a_turn_whose_owner_dies_while_it_is_held_goes_on_with_its_holds_and_attempts_counted(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    """AC-20, with a kill in the middle of the wait."""
    name, first = yard.provider(), yard.worker()
    model = provider.script("main", [reply("Done.")], faults=[status(429, retry_after=2)], repeat_last=True)
    bench.start(bench.submit(model=f"{name}:{model}"), first)
    provider.wait_for_requests("main", 1)
    turn_id = bench.submit(model=f"{name}:{model}")
    bench.start(turn_id, yard.worker())
    until(lambda: bool(yard.events(turn_id, "model.held")))
    bench.kill_owner(turn_id)

    turn = bench.run(turn_id, yard.worker())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert turn.counters.crash_streak == 0
    assert [r.answer for r in provider.requests("main")].count(429) == 1
    assert bench.row(turn_id)["crash_count"] == 1


def test_a_call_that_is_held_for_ever_ends_its_turn_as_rate_limited(
    yard: Yard, bench: Bench, provider: ScriptedProvider
) -> None:
    name, worker = yard.provider(), yard.worker()
    model = provider.script("main", [status(429, retry_after=3000)], repeat_last=True)
    bench.run(bench.submit(model=f"{name}:{model}"), worker)
    turn_id = bench.submit(model=f"{name}:{model}")
    held = 0
    while bench.run(turn_id, worker).status is TurnStatus.WAITING:
        held += 1
        bench.end_wait(turn_id)

    view = bench.view(turn_id)
    assert (view.exit_reason, held) == (ExitReason.RATE_LIMITED, 100)
    assert "held back 100 times running" in (view.message or "")
    assert len(provider.requests("main")) == 1
