"""Acceptance scenarios of what providers do to a turn: two of them over HTTP, each refusing what the real ones refuse.

AC-03, AC-22, AC-24, AC-25.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest

from ops.dev.scripted_provider.script import Reply, attempts, broken, calls, hang, reply, status
from ops.dev.scripted_provider.server import Options
from orchestration.ports import ModelClient
from orchestration.providers.catalog import connect
from orchestration.providers.openai_responses.items import ITEM
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.runtime import Runtime
from persistence.records.message import Thinking
from persistence.records.status import ExitReason
from tests.providers.bench import APIS, client
from tests.support.processes import slowdown
from tests.support.provider import ScriptedProvider, provider, scripted_provider
from tests.support.workbench import Bench

__all__ = ["provider"]

# What only this provider takes: of OpenAI's own options one that Anthropic refuses, and the other way round.
_OWN: Mapping[Api, dict[str, Any]] = {
    Api.OPENAI_CHAT: {"parallel_tool_calls": True, "seed": 7},
    Api.OPENAI_RESPONSES: {"parallel_tool_calls": True, "truncation": "disabled"},
    Api.ANTHROPIC: {"inference_geo": "us"},
}


class Pair:
    """A primary P and a fallback Q, servers of different issuers; `apis` are their protocols."""

    def __init__(self, bench: Bench, apis: tuple[Api, Api], p: ScriptedProvider, q: ScriptedProvider) -> None:
        self.bench = bench
        self.p, self.q = p, q
        self._clients = ExitStack()
        self._models: dict[str, ModelClient] = {}
        for name, api, server in zip("pq", apis, (p, q), strict=True):
            settings = ProviderSettings(name, api, server.openai_url, (server.api_key,), extra_body=_OWN[api])
            self._models[name] = self._clients.enter_context(closing(connect(settings)))

    def runtime(self, worker: str = "worker-1") -> Runtime:
        return self.bench.runtime(worker, models=self._models.__getitem__)

    def run(self, model: str, *fallbacks: str, **how: Any) -> UUID:
        turn_id = self.bench.submit(model=model, fallbacks=fallbacks, **how)
        self.bench.run(turn_id, self.runtime())
        return turn_id

    def close(self) -> None:
        self._clients.close()
        for server in (self.p, self.q):
            server.assert_none_refused()


_PAIRS = [*permutations(APIS, 2), *((api, api) for api in APIS)]


def _of(pairs: Iterable[tuple[Api, Api]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", list(pairs), ids="-to-".join, indirect=True)


@pytest.fixture
def pair(request: pytest.FixtureRequest, bench: Bench) -> Generator[Pair]:
    with scripted_provider(Options(issuer="p")) as p, scripted_provider(Options(issuer="q")) as q:
        made = Pair(bench, request.param, p, q)
        yield made
        made.close()


@_of(apis for apis in _PAIRS if apis[0] is not Api.OPENAI_CHAT)  # which shows no thinking of its own
def test_what_one_provider_signed_goes_back_to_it_alone(pair: Pair) -> None:
    """AC-03: P thinks and calls, then is overloaded; Q never sees P's signature, and P takes it again later."""
    bench = pair.bench
    p = pair.p.script("thinks", [calls(("look", {}), thinking="Let me see."), status(529)], repeat_last=True)
    q = pair.q.script("stands-in", [reply("unused"), reply("From Q.")])

    turn_id = pair.run(f"p:{p}", f"q:{q}")

    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "From Q.")
    assert bench.events(turn_id).count("model.fallback") == 1
    assert len(pair.q.requests()) == 1
    kept = [b for m in bench.messages(turn_id) for b in m.content if isinstance(b, Thinking)]
    assert [b.native.provider for b in kept] == ["p"]
    assert "Let me see." not in json.dumps(pair.q.requests()[0].body)

    pinned = pair.p.script("pinned", [reply("unused"), reply("unused"), reply("From P again.")])
    later = pair.run(f"p:{pinned}", session_id=view.session_id, prompt="And now?")

    assert bench.view(later).output_text == "From P again."
    (again,) = pair.p.requests("pinned")
    signed = kept[0].native.data
    assert json.dumps(signed.get("signature") or signed[ITEM]["encrypted_content"]) in json.dumps(again.body)


@_of(_PAIRS)
def test_a_fallback_gets_a_request_of_its_own_making(pair: Pair) -> None:
    """AC-25: P answers with two calls and goes down; its model, options and shapes stay away from Q, its calls do not."""
    bench = pair.bench
    two = calls(("look", {"what": "a"}, "call_a"), ("look", {"what": "b"}, "call_b"))
    p = pair.p.script("goes-down", [two, status(500)], repeat_last=True)
    q = pair.q.script("takes-over", [reply("unused"), calls(("look", {"what": "c"})), reply("Done.")])

    turn_id = pair.run(f"p:{p}", f"q:{q}")

    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "Done.")
    assert set(bench.statuses(turn_id).values()) == {"succeeded"}
    first = pair.q.requests()[0].body
    assert first is not None
    assert first["model"] == q
    told = json.dumps(first)
    assert all(
        result.content in told for call_id, result in bench.results(turn_id).items() if call_id in "call_a call_b"
    )
    answered = bench.database.rows(
        "SELECT provider, model FROM model_calls WHERE turn_id = %(id)s AND error IS NULL ORDER BY position",
        {"id": turn_id},
    )
    assert [(r["provider"], r["model"]) for r in answered] == [("p", p), ("q", q), ("q", q)]


@pytest.fixture(params=APIS, ids=str)
def one(request: pytest.FixtureRequest, bench: Bench, provider: ScriptedProvider) -> Generator[Runtime]:
    with client(request.param, provider.url, key=provider.api_key) as made:
        yield bench.runtime(models=lambda _name: made)


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error", "server_error"])
def test_an_error_inside_a_stream_is_one_of_its_kind(
    bench: Bench, provider: ScriptedProvider, one: Runtime, kind: str
) -> None:
    """AC-22: asked for again, and nothing of the words that had come before it is kept."""
    partial = broken(reply("Half of an answer that never ends."), "error", "mid-text", error=kind)
    model = provider.script("breaks", [attempts(partial, calls(("look", {}))), reply("Whole.")])
    turn_id = bench.submit(model=f"main:{model}")

    bench.run(turn_id, one)

    assert bench.view(turn_id).output_text == "Whole."
    assert len(provider.requests("breaks")) == 3
    assert "Half" not in "".join(m.text for m in bench.messages(turn_id))


def test_an_invalid_request_inside_a_stream_is_not_asked_for_again(
    bench: Bench, provider: ScriptedProvider, one: Runtime
) -> None:
    """AC-22, its variant."""
    partial = broken(reply("Half of an answer."), "error", "mid-text", error="invalid_request_error")
    turn_id = bench.submit(model=f"main:{provider.script('invalid', [partial], repeat_last=True)}")

    bench.run(turn_id, one)

    assert bench.view(turn_id).exit_reason is ExitReason.PROVIDER_FAILED
    assert len(provider.requests("invalid")) == 1


_CALL_S = 0.4
_ATTEMPTS = 2
_LIMITS: dict[str, Any] = {"first_token_s": 5.0, "idle_s": 5.0, "call_s": _CALL_S}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            broken(reply("word " * 50, as_json=True), "drip", "mid-text", interval_s=0.05), id="a dripping document"
        ),
        pytest.param(broken(reply("word"), "endless", "mid-text", interval_s=0.05), id="words without end"),
        pytest.param(hang(), id="no answer"),
    ],
)
def test_the_limit_of_a_call_holds_whatever_drips_in_and_nothing_multiplies_it(
    bench: Bench, provider: ScriptedProvider, one: Runtime, fault: Reply
) -> None:
    """AC-24: as many requests as attempts, each as long as the limit says, and the server sees them go."""
    turn_id = bench.submit(
        model=f"main:{provider.script('drips', [fault], repeat_last=True)}", attempts=_ATTEMPTS, **_LIMITS
    )

    bench.run(turn_id, one)

    view = bench.view(turn_id)
    assert view.exit_reason is ExitReason.PROVIDER_FAILED
    assert "timeout" in (view.message or "")
    requests = provider.requests("drips")
    assert len(requests) <= _ATTEMPTS
    latencies = bench.database.rows("SELECT latency_s, error FROM model_calls WHERE turn_id = %(id)s", {"id": turn_id})
    assert len(latencies) == len(requests)
    assert [r["latency_s"] for r in latencies if r["latency_s"] < 0.9 * _CALL_S] == []
    assert max(r["latency_s"] for r in latencies) < _CALL_S + 1.0 * slowdown()
    provider.wait_until(
        lambda: all(r.disconnected_s is not None for r in provider.requests("drips")),
        "all sockets closed",
        timeout_s=10,
    )


def test_the_deadline_caps_the_sum_of_attempts(bench: Bench, provider: ScriptedProvider, one: Runtime) -> None:
    """AC-24: many attempts are allowed, and the turn has no time for them."""
    model = provider.script("hangs", [hang()], repeat_last=True)
    turn_id = bench.submit(model=f"main:{model}", attempts=50, deadline_s=2.0, **_LIMITS)

    bench.run(turn_id, one)

    assert bench.view(turn_id).exit_reason is ExitReason.DEADLINE
    assert 1 <= len(provider.requests("hangs")) <= 6
