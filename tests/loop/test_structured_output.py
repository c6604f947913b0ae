"""A final answer that has to be JSON of a form: checked by us, sent back with what is wrong with it, bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.ports import Finish, ModelRequest, Reply, StopSignal
from orchestration.providers.settings import Api
from persistence import inbox, resumption
from persistence.records.message import Origin, Role
from persistence.records.status import ExitReason, TurnStatus
from tests.loop.wire import Said, answering, wire
from tests.providers.bench import APIS, client
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer", "minimum": 1}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
GOOD = '{"city": "Bonn", "people": 336465}'
WRONG = '{"city": "Bonn", "people": "many"}'


def outcome(bench: Bench, *replies: Any, **settings: Any) -> tuple[ExitReason | None, str | None, int]:
    turn = bench.fresh(*replies, **{"output_schema": SCHEMA, **settings})
    view = bench.view(turn.id)
    return view.exit_reason, view.output_text, bench.model.calls


def test_an_answer_that_fits_is_the_output(bench: Bench) -> None:
    assert outcome(bench, says(GOOD)) == (ExitReason.FINAL_ANSWER, GOOD, 1)
    assert bench.model.requests[0].output_schema == SCHEMA


@pytest.mark.parametrize("said", [f"```json\n{GOOD}\n```", f"```\n{GOOD}```", f"\n {GOOD}\n"])
def test_what_models_put_around_json_is_no_part_of_the_output(bench: Bench, said: str) -> None:
    assert outcome(bench, says(said)) == (ExitReason.FINAL_ANSWER, GOOD, 1)


def test_words_before_a_call_are_no_answer_and_need_not_fit(bench: Bench) -> None:
    replies = (asks(("look", "{}"), text="I will look."), says(GOOD))

    assert outcome(bench, *replies) == (ExitReason.FINAL_ANSWER, GOOD, 2)


def test_an_answer_that_does_not_fit_goes_back_with_what_is_wrong_with_it(bench: Bench) -> None:
    assert outcome(bench, says(WRONG), says("Sorry!"), says(GOOD)) == (ExitReason.FINAL_ANSWER, GOOD, 3)

    told = [m.text for m in bench.model.requests[-1].messages if m.origin is Origin.NOTICE]
    assert "at $.people, 'many' is not of type 'integer'" in told[0]
    assert "it is not JSON" in told[1]


@pytest.mark.parametrize("repairs", [0, 2])
def test_an_answer_that_never_fits_ends_the_turn_as_invalid(bench: Bench, repairs: int) -> None:
    found = outcome(bench, says(WRONG), output_repairs=repairs)

    assert found == (ExitReason.OUTPUT_INVALID, WRONG, repairs + 1)
    view = bench.view(bench.turn_ids[-1])
    assert view.status is TurnStatus.FAILED
    assert "at $.people, 'many' is not of type 'integer'" in (view.message or "")


def test_repairs_are_counted_over_the_whole_turn_and_anew_after_a_resume(bench: Bench) -> None:
    turn = bench.fresh(says(WRONG), asks(("look", "{}")), says(WRONG), output_schema=SCHEMA, output_repairs=1)
    assert turn.exit_reason is ExitReason.OUTPUT_INVALID

    resumption.resume(bench.database, turn.id, notice="Go on.")
    bench.script(says(WRONG), asks(("look", "{}")), says(WRONG), says(WRONG), says(GOOD))
    assert bench.run(turn.id).exit_reason is ExitReason.FINAL_ANSWER


def test_a_crash_in_the_middle_of_the_repairs_grants_no_more_of_them(bench: Bench) -> None:
    def dies(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise KeyboardInterrupt

    bench.script(says(WRONG), says(WRONG), dies)
    turn_id = bench.submit(output_schema=SCHEMA)
    with pytest.raises(KeyboardInterrupt):
        bench.run(turn_id)
    bench.kill_owner(turn_id)
    bench.script(says(WRONG))

    assert bench.run(turn_id).exit_reason is ExitReason.OUTPUT_INVALID
    assert bench.model.calls == 1


def test_an_answer_in_parts_is_checked_as_a_whole(bench: Bench) -> None:
    cut = says(GOOD[:12], finish=Finish.LENGTH)

    assert outcome(bench, cut, says(GOOD[12:])) == (ExitReason.FINAL_ANSWER, GOOD, 2)


def test_the_grace_call_and_a_fallback_keep_the_schema(bench: Bench) -> None:
    assert outcome(bench, asks(("look", "{}")), says(GOOD), iterations=1) == (ExitReason.BUDGET_EXHAUSTED, GOOD, 2)
    assert [r.output_schema for r in bench.model.requests] == [SCHEMA, SCHEMA]

    failing = (ModelError(ErrorClass.AUTH, "401", status=401), says(GOOD))
    bench.script(says(GOOD), faults=failing[:1])
    turn = bench.run(bench.submit(output_schema=SCHEMA, fallbacks=("scripted:other",)))
    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [r.output_schema for r in bench.model.requests] == [SCHEMA, SCHEMA]


def test_an_answer_that_does_not_fit_in_the_last_iteration_is_repaired_by_the_grace_call(bench: Bench) -> None:
    assert outcome(bench, says(WRONG), says(GOOD), iterations=1) == (ExitReason.BUDGET_EXHAUSTED, GOOD, 2)
    assert bench.view(bench.turn_ids[-1]).message is None

    assert outcome(bench, says(WRONG), iterations=1) == (ExitReason.BUDGET_EXHAUSTED, WRONG, 2)
    assert "does not fit" in (bench.view(bench.turn_ids[-1]).message or "")
    assert outcome(bench, says(WRONG), iterations=1, grace="off") == (ExitReason.BUDGET_EXHAUSTED, WRONG, 1)


def test_a_steer_that_came_in_time_is_answered_in_the_same_form(bench: Bench) -> None:
    def steered(request: ModelRequest, _stop: StopSignal) -> Reply:
        inbox.steer(bench.database, request.messages[-1].turn_id, "Köln instead.")
        return says(GOOD)

    koeln = GOOD.replace("Bonn", "Köln")
    assert outcome(bench, steered, says("Köln then."), says(koeln)) == (ExitReason.FINAL_ANSWER, koeln, 3)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"city": "Bonn", "people": NaN}', '{"city": "a", "people": 1} {}', ""]
)
def test_what_is_no_json_is_a_misfit_and_no_fault(bench: Bench, text: str) -> None:
    found = outcome(bench, says(text or " x"), output_repairs=0)

    assert found[0] is ExitReason.OUTPUT_INVALID


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"type": "object", "properties": {"city": {"type": "string", "minLength": 2}, "people": {"type": "integer"}}},
        {"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
        {
            "type": "object",
            "properties": {
                "city": {"$ref": "#/$defs/name"},
                "people": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "$defs": {"name": {"type": "string"}},
            "required": ["city", "people"],
            "additionalProperties": False,
        },
    ],
    ids=["strict", "not strict", "open", "references"],
)
@pytest.mark.parametrize("takes_schema", [True, False], ids=["native", "in words"])
def test_every_provider_is_asked_in_a_way_that_it_takes(
    bench: Bench, api: Api, schema: dict[str, Any], *, takes_schema: bool
) -> None:
    replies = (wire(Said("Well.")), wire(Said(GOOD)))
    with (
        answering(api, replies, streams=True) as server,
        client(api, server.url, takes_schema=takes_schema) as model,
    ):
        turn_id = bench.submit(model="main:served", output_schema=schema)
        bench.run(turn_id, bench.runtime(models=lambda _name: model))

    assert server.refused == []
    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, GOOD)
    assert [m.role for m in bench.messages(turn_id)] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    body = server.bodies[0]
    fields = {Api.OPENAI_CHAT: "response_format", Api.OPENAI_RESPONSES: "text", Api.ANTHROPIC: "output_config"}
    is_open = api is Api.ANTHROPIC and "properties" not in schema
    assert (fields[api] in body) is (takes_schema and not is_open)
    in_words = "one JSON value and nothing else" in json.dumps(body)
    assert in_words is not (fields[api] in body)
    if api is not Api.ANTHROPIC and takes_schema:
        named = body["response_format"]["json_schema"] if api is Api.OPENAI_CHAT else body["text"]["format"]
        assert named["strict"] is ("required" in schema)
        assert named["schema"] == schema


def test_the_options_of_a_provider_stand_beside_the_schema(bench: Bench) -> None:
    options = {
        Api.OPENAI_RESPONSES: {"text": {"verbosity": "low"}},
        Api.ANTHROPIC: {"output_config": {"effort": "low"}},
    }
    for api, extra in options.items():
        with (
            answering(api, (wire(Said(GOOD)),), streams=True) as server,
            client(api, server.url, extra_body=extra) as model,
        ):
            turn_id = bench.submit(model="main:served", output_schema=SCHEMA)
            bench.run(turn_id, bench.runtime(models=lambda _name, model=model: model))
        (field,) = extra
        assert server.refused == []
        assert server.bodies[0][field].keys() == {"format", *extra[field]}


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400])
def test_a_number_that_nothing_can_count_is_a_misfit_and_no_fault_of_ours(bench: Bench, number: str) -> None:
    schema = {"type": "object", "properties": {"price": {"multipleOf": 0.01}}}

    turn = bench.fresh(says(f'{{"price":{number}}}'), says('{"price":1.25}'), output_schema=schema)

    assert (turn.exit_reason, bench.view(turn.id).output_text) == (ExitReason.FINAL_ANSWER, '{"price":1.25}')
