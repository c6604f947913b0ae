"""A request that its model refuses for something that can be left out, and the turn that goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ops.dev.scripted_provider.script import attempts, calls, reply, status
from ops.dev.scripted_provider.server import Options
from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import ModelRequest, Reply, StopSignal
from orchestration.providers.settings import Api
from persistence import events
from persistence.records.status import ExitReason
from tests.providers.bench import APIS, client
from tests.support.provider import ScriptedProvider, provider, scripted_provider
from tests.support.scripted_model import ScriptedModel, asks, says
from tests.support.windows import WindowedModel, is_for_summary
from tests.support.workbench import Bench

__all__ = ["provider"]

CAP = {Api.OPENAI_CHAT: "max_completion_tokens", Api.OPENAI_RESPONSES: "max_output_tokens", Api.ANTHROPIC: "max_tokens"}


def repairs(bench: Bench, turn_id: Any) -> list[tuple[str, int]]:
    found = [dict(e.payload) for e in events.read(bench.database, turn_id) if e.type == "request.repaired"]
    return [(payload["repair"], payload["value"]) for payload in found]


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_may_not_be_so_long_is_asked_for_shorter_from_then_on(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    steps = [calls(("look", {})), calls(("look", {})), reply("Done.")]
    model = provider.script("short", steps, max_output=8_192)
    provider.expect_refusals()

    with client(api, provider.url, key=provider.api_key) as made:
        turn_id = bench.submit(model=f"main:{model}", max_output_tokens=50_000)
        turn = bench.run(turn_id, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.body[CAP[api]] for r in provider.requests("short")] == [50_000, 8_192, 8_192, 8_192]
    assert repairs(bench, turn_id) == [("output_cap", 8_192)]
    assert [r["error"] for r in bench.everything(turn_id)["model_calls"]].count("output_cap") == 1


@pytest.mark.parametrize("api", [Api.OPENAI_CHAT, Api.OPENAI_RESPONSES])
def test_a_window_that_the_answer_alone_would_fill_is_no_reason_to_compress(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    model = provider.script("small", [calls(("look", {})), reply("Done.")], context_limit=16_000)

    with client(api, provider.url, key=provider.api_key) as made:
        turn_id = bench.submit(model=f"main:{model}", max_output_tokens=16_000)
        turn = bench.run(turn_id, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.body[CAP[api]] for r in provider.requests("small")] == [16_000, 8_000, 8_000]
    assert "compression.done" not in bench.events(turn_id)


@pytest.mark.parametrize("api", APIS)
def test_where_the_refusal_names_no_limit_what_every_model_gives_is_asked_for(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    model = provider.script("short", [attempts(status(400, "max_tokens is too large"), reply("Done."))])

    with client(api, provider.url, key=provider.api_key) as made:
        turn_id = bench.submit(model=f"main:{model}", max_output_tokens=50_000)
        turn = bench.run(turn_id, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.body[CAP[api]] for r in provider.requests("short")] == [50_000, 4_096]


@pytest.fixture
def moved() -> Iterator[tuple[ScriptedProvider, ScriptedProvider]]:
    """A provider before and after it has changed the keys that it signs with."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(scripted_provider(Options(issuer="before"))),
            stack.enter_context(scripted_provider(Options(issuer="after"))),
        )


@pytest.mark.parametrize("api", [Api.ANTHROPIC, Api.OPENAI_RESPONSES])
def test_thinking_that_its_provider_knows_no_more_is_left_out_and_new_thinking_is_kept(
    bench: Bench, moved: tuple[ScriptedProvider, ScriptedProvider], api: Api
) -> None:
    before, after = moved
    before.script("thinks", [calls(("look", {}), thinking="Hm."), reply("Done.", thinking="So.")])
    later = [reply("never asked"), reply("never asked"), calls(("look", {}), thinking="Anew."), reply("Done again.")]
    model = after.script("thinks", later)

    with client(api, before.url, key=before.api_key) as made:
        first = bench.submit(model=f"main:{model}")
        bench.run(first, bench.runtime(models=lambda _: made))
    with client(api, after.url, key=after.api_key) as made:
        second = bench.submit("And now?", session_id=bench.view(first).session_id, model=f"main:{model}")
        turn = bench.run(second, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [repair for repair, _ in repairs(bench, second)] == ["thinking"]
    requests = after.requests("thinks")
    assert [r.refused is not None for r in requests] == [True, False, False]
    shown = [str(r.body) for r in requests]
    assert ["signature" in body or "encrypted_content': '" in body for body in shown] == [True, False, True]


def test_a_server_that_tells_its_reasoning_and_takes_none_back_is_sent_none(
    bench: Bench, provider: ScriptedProvider
) -> None:
    provider.expect_refusals()
    model = provider.script("tells", [*[calls(("look", {}), thinking="Hm.")] * 5, reply("Done.")])

    with client(Api.OPENAI_CHAT, provider.url, key=provider.api_key) as made:
        turn_id = bench.submit(model=f"main:{model}")
        turn = bench.run(turn_id, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [repair for repair, _ in repairs(bench, turn_id)] == ["thinking", "thinking"]
    refused = [r.refused for r in provider.requests("tells")]
    assert refused == [None, "openai.unknown_field", None, "openai.unknown_field", *[None] * 4], (
        "two refusals are enough"
    )


def test_what_a_session_has_learned_its_next_turn_knows(bench: Bench, provider: ScriptedProvider) -> None:
    """A model that takes no thinking back, no long answers and no ids of another company would refuse each turn's first requests."""
    provider.expect_refusals()
    answers = [*[calls(("look", {}), thinking="Hm.")] * 2, reply("Done.", thinking="So.")] * 3
    model = provider.script("odd", answers, call_id_chars=9, max_output=8_192)
    settings: dict[str, Any] = {"model": f"main:{model}", "max_output_tokens": 50_000}

    with client(Api.OPENAI_CHAT, provider.url, key=provider.api_key) as made:
        runtime = bench.runtime(models=lambda _: made)
        first = bench.submit(**settings)
        bench.run(first, runtime)
        learned = len([r for r in provider.requests("odd") if r.refused])
        provider.clear()
        session_id = bench.view(first).session_id
        later = [bench.submit("And now?", session_id=session_id, **settings) for _ in range(2)]
        ended = [bench.run(turn_id, runtime).exit_reason for turn_id in later]

    assert ended == [ExitReason.FINAL_ANSWER] * 2
    assert learned == 4, "its length, its ids, and its thinking twice"
    assert [r.refused for r in provider.requests("odd")] == [None] * 6
    assert all(repairs(bench, turn_id) == [] for turn_id in later)


def test_what_a_fallback_has_refused_is_not_held_against_the_agents_own_model(bench: Bench) -> None:
    def refuses_long(request: ModelRequest, _stop: StopSignal) -> Reply:
        if (request.max_output_tokens or 0) > 5_000:
            raise ModelError(ErrorClass.OUTPUT_CAP, "too long", status=400, output_limit=5_000)
        return says("Done.")

    primary = ScriptedModel(ModelError(ErrorClass.AUTH, "401", status=401), says("From the primary."))
    models = {"primary": primary, "second": ScriptedModel(refuses_long)}.__getitem__
    chain: dict[str, Any] = {"model": "primary:large", "fallbacks": ("second:medium",), "max_output_tokens": 9_000}
    first = bench.submit(**chain)
    turn = bench.run(first, bench.runtime(models=models))
    assert (turn.exit_reason, turn.counters.remedies["output_limit"]) == (ExitReason.FINAL_ANSWER, 5_000)

    second = bench.submit("And now?", session_id=turn.session_id, **chain)
    bench.run(second, bench.runtime(models=models))

    assert primary.requests[-1].max_output_tokens == 9_000, "the limit was another model's"


def test_thinking_that_is_refused_again_leaves_the_model_for_the_next(bench: Bench) -> None:
    refused = ModelError(ErrorClass.THINKING_SIGNATURE, "no", status=400)
    primary = ScriptedModel(asks(("look", "{}")), refused)
    second = ScriptedModel(says("not this one"), says("From the second."))
    turn_id = bench.submit(model="primary:large", fallbacks=("second:medium",))

    turn = bench.run(turn_id, bench.runtime(models={"primary": primary, "second": second}.__getitem__))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turn_id).output_text == "From the second."
    assert (primary.calls, second.calls) == (2, 1), "there was no thinking to leave out: nothing is repaired"


@pytest.mark.parametrize("api", APIS)
def test_a_server_that_takes_other_ids_of_calls_is_sent_them_from_then_on(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    """After a fallback, for one: the calls so far have the ids of another company."""
    provider.expect_refusals()
    own = [calls(("look", {}), ("look", {}), text="And I look.")] * 2
    model = provider.script("mistral", [reply("never asked"), *own, reply("Done.")], call_id_chars=9)
    first = ScriptedModel(
        asks(("look", "{}"), ("send", "{}"), tag="call_of_another_"), ModelError(ErrorClass.TLS, "no")
    )

    with client(api, provider.url, key=provider.api_key) as made:
        turn_id = bench.submit(model="first:large", fallbacks=(f"main:{model}",))
        turn = bench.run(turn_id, bench.runtime(models={"first": first, "main": made}.__getitem__))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.refused for r in provider.requests("mistral")] == ["mistral.call_id", None, None, None]
    assert repairs(bench, turn_id) == [("call_ids", 9)]
    assert turn.counters.remedies["call_id_chars"] == 9
    assert {*bench.calls(turn_id)} >= {"call_of_another_1", "call_of_another_2"}, "what is stored keeps its name"


def test_ids_of_calls_that_are_refused_again_leave_the_model_for_the_next(bench: Bench) -> None:
    primary = ScriptedModel(asks(("look", "{}")), ModelError(ErrorClass.CALL_ID, "no", status=400))
    second = ScriptedModel(says("not this one"), says("From the second."))
    turn_id = bench.submit(model="primary:large", fallbacks=("second:medium",))

    turn = bench.run(turn_id, bench.runtime(models={"primary": primary, "second": second}.__getitem__))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.call_id_chars for r in primary.requests] == [None, None, 9]
    assert [r.call_id_chars for r in second.requests] == [None], "another model has a taste of its own"


def refuses_above(limit: int, told: int | None) -> Any:
    def answered(request: ModelRequest, _stop: StopSignal) -> Reply:
        if (request.max_output_tokens or 0) > limit:
            raise ModelError(ErrorClass.OUTPUT_CAP, "too long", status=400, output_limit=told)
        return says("Done.")

    return answered


def test_a_repair_is_tried_once_then_the_model_is_given_up(bench: Bench) -> None:
    bench.script(refuses_above(100, told=5_000))

    turn_id = bench.submit(max_output_tokens=9_000)
    turn = bench.run(turn_id)

    assert turn.exit_reason is ExitReason.PROVIDER_FAILED
    assert [r.max_output_tokens for r in bench.model.requests] == [9_000, 5_000]
    assert "output_cap" in (bench.view(turn_id).message or "")


def test_a_limit_that_is_no_shorter_than_what_was_asked_for_is_no_repair(bench: Bench) -> None:
    bench.script(refuses_above(100, told=9_000))

    turn = bench.run(bench.submit(max_output_tokens=9_000))

    assert (turn.exit_reason, bench.model.calls) == (ExitReason.PROVIDER_FAILED, 1)


def test_the_next_model_is_asked_for_what_the_agent_wants(bench: Bench) -> None:
    primary, second = ScriptedModel(refuses_above(100, told=5_000)), ScriptedModel(refuses_above(9_000, told=None))
    turn_id = bench.submit(model="primary:large", fallbacks=("second:medium",), max_output_tokens=9_000)

    turn = bench.run(turn_id, bench.runtime(models={"primary": primary, "second": second}.__getitem__))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.max_output_tokens for r in second.requests] == [9_000]


def test_a_summary_that_may_not_be_asked_for_so_long_is_asked_for_shorter(bench: Bench) -> None:
    """The model that summarises has a limit of its own, which the turn's calls do not share."""

    def answered(request: ModelRequest) -> Reply | BaseException:
        if is_for_summary(request):
            if (request.max_output_tokens or 0) > 1_000:
                return ModelError(ErrorClass.OUTPUT_CAP, "too long", status=400, output_limit=1_000)
            return says("Leaves were read.")
        done = request.messages[-1].iteration
        return says("Done.") if done == 9 else asks(("note", f'{{"text":"{"x" * 1200}"}}'), tag=f"n{done}_")

    models = {"scripted": WindowedModel(answered), "helper": WindowedModel(answered, name="helper")}
    turn_id = bench.submit(context_window=6_000, max_output_tokens=2_000, compress_model="helper:small")

    turn = bench.run(turn_id, bench.runtime(models=models.__getitem__))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    asked = [r.max_output_tokens for r in models["helper"].requests]
    assert asked[0] == 2_000
    assert set(asked[1:]) == {1_000}
    assert "compression.done" in bench.events(turn_id)
    assert {r.max_output_tokens for r in models["scripted"].requests} == {2_000}
