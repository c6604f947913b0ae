"""Pictures that tools return: shown to every provider, and kept where siblings still run."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from orchestration import transcript
from orchestration.context_size import IMAGE_TOKENS, rough_block
from orchestration.providers.settings import Api
from orchestration.tools.results import fit
from persistence.records.message import (
    CallStatus,
    Image,
    Result,
    block_from_json,
    block_to_json,
    kept_result,
    kept_text,
)
from persistence.records.status import ExitReason
from tests.loop.wire import Asks, answering, wire
from tests.providers.bench import APIS, client
from tests.support.crashing import Crash
from tests.support.ledger import TOOLS as LEDGER
from tests.support.pictures import BYTES, TOOLS, accidents
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench

PICTURE = Image("image/png", data=base64.b64encode(BYTES).decode())
TWO = tuple(Image("image/png", data=base64.b64encode(BYTES + bytes([n])).decode()) for n in range(2))


@pytest.mark.parametrize("api", APIS)
def test_pictures_in_results_are_shown_to_every_provider_in_its_own_way(bench: Bench, api: Api) -> None:
    asked = wire(Asks("album", "{}", "c1"), Asks("photo", "{}", "c2"), Asks("look", "{}", "c3"), finish="tool_calls")
    with answering(api, (asked,), streams=True) as server, client(api, server.url) as model:
        turn_id = bench.submit(model="main:served", tools=(TOOLS, LEDGER))
        turn = bench.run(turn_id, bench.runtime(models=lambda _name: model))
        bench.run(
            bench.submit("And now?", session_id=turn.session_id, model="main:served"),
            bench.runtime(models=lambda _name: model),
        )

    assert server.refused == []
    results = bench.results(turn_id)
    assert [(r.content, r.images) for r in results.values()] == [
        ("The album:", TWO),
        ("(a picture)", (PICTURE,)),
        ("saw around", ()),
    ]
    for body in server.bodies[1:]:
        assert WHERE[api](body) == [p.data for p in (*TWO, PICTURE)]


def _in_chat(body: dict[str, Any]) -> list[str]:
    """A user's message right after all results."""
    roles = [m["role"] for m in body["messages"]]
    assert roles[:7] == ["system", "user", "assistant", "tool", "tool", "tool", "user"]
    parts = body["messages"][6]["content"]
    assert [p["text"] for p in parts if p["type"] == "text"] == [
        f"[What the call {c} returned beside its text:]" for c in ("c1", "c2")
    ]
    return [p["image_url"]["url"].partition(",")[2] for p in parts if p["type"] == "image_url"]


def _in_responses(body: dict[str, Any]) -> list[str]:
    outputs = [i["output"] for i in body["input"] if i.get("type") == "function_call_output"]
    assert outputs[2] == "saw around"
    parts = [part for output in outputs[:2] for part in output]
    return [p["image_url"].partition(",")[2] for p in parts if p["type"] == "input_image"]


def _in_anthropic(body: dict[str, Any]) -> list[str]:
    blocks = [b for b in body["messages"][2]["content"] if b["type"] == "tool_result"]
    assert blocks[2]["content"] == "saw around"
    parts = [part for block in blocks[:2] for part in block["content"]]
    return [p["source"]["data"] for p in parts if p["type"] == "image"]


WHERE = {Api.OPENAI_CHAT: _in_chat, Api.OPENAI_RESPONSES: _in_responses, Api.ANTHROPIC: _in_anthropic}


def test_a_picture_that_is_in_survives_a_crash_while_its_siblings_run(bench: Bench) -> None:
    bench.script(asks(("album", "{}"), ("album", '{"count":1}'), ("photo", "{}")), says("Two albums."))
    turn_id = bench.submit(tools=(TOOLS,))
    accidents.append(Crash())
    with pytest.raises(Crash):
        bench.run(turn_id)
    bench.kill_owner(turn_id)

    assert bench.run(turn_id, alone=True).exit_reason is ExitReason.FINAL_ANSWER
    found = [(r.status.value, len(r.images)) for r in bench.results(turn_id).values()]
    assert found == [("succeeded", 2), ("unknown", 0), ("succeeded", 1)]
    assert len(bench.ledger.starts(turn_id, "album")) == 2


def test_texts_and_pictures_that_are_yielded_are_one_result(bench: Bench) -> None:
    turn = bench.fresh(asks(("film", "{}"), ("forged", "{}")), says("Done."), tools=(TOOLS,))

    film, forged = bench.results(turn.id).values()
    assert (film.content, film.images) == ("first last", (PICTURE,))
    assert (forged.status, forged.images) == (CallStatus.FAILED, ())
    assert "holds a picture that is no PNG" in forged.content


@pytest.mark.parametrize(
    "result",
    [
        Result("c1", "words", CallStatus.SUCCEEDED),
        Result("c1", "", CallStatus.FAILED),
        Result("c1", "words", CallStatus.SUCCEEDED, (PICTURE, Image("", url="https://x/y.png"))),
        Result("c1", "\ufdd0 no picture", CallStatus.SUCCEEDED),
    ],
)
def test_a_result_is_kept_and_stored_as_it_is(result: Result) -> None:
    assert kept_result("c1", kept_text(result), result.status) == result
    assert block_from_json(json.loads(json.dumps(block_to_json(result)))) == result


def test_a_result_without_pictures_is_stored_as_it_ever_was() -> None:
    stored = {"type": "tool_result", "id": "c1", "content": "words", "is_error": False, "status": "succeeded"}

    assert block_to_json(Result("c1", "words", CallStatus.SUCCEEDED)) == stored
    assert kept_text(Result("c1", "words", CallStatus.SUCCEEDED)) == "words"


def test_pictures_in_a_result_weigh_and_read_as_pictures(bench: Bench) -> None:
    turn = bench.fresh(asks(("album", "{}")), says("Done."), tools=(TOOLS,))

    stored = bench.messages(turn.id)[2]
    plain, shown = Result("c1", "The album:", CallStatus.SUCCEEDED), stored.content[0]
    assert rough_block(shown) == rough_block(plain) + 2 * IMAGE_TOKENS
    assert transcript.line(stored, transcript.WHOLE) == "[3] Result: The album:\n(a picture)\n(a picture)"


def test_pictures_that_a_window_has_no_room_for_are_left_out_and_the_model_is_told() -> None:
    many = Result("c1", "The album:", CallStatus.SUCCEEDED, (PICTURE,) * 9)

    assert fit(many, None) == many
    assert len(fit(many, 9 * 4 * IMAGE_TOKENS).images) == 9
    fitted = fit(many, 3 * 4 * IMAGE_TOKENS)
    assert len(fitted.images) == 3
    assert fitted.content == "The album:\n[… (6 pictures) left out: the context has no room …]"
    assert len(fit(many, 10).images) == 1
