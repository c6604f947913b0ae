"""Pictures in requests, from the submit to every provider, and what becomes of them later."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import pytest

from orchestration import transcript
from orchestration.context_size import rough_tokens
from orchestration.errors import ErrorClass
from orchestration.providers.settings import Api
from persistence import submission
from persistence.errors import Refused
from persistence.records.agent import OnBusy
from persistence.records.message import Block, Image, Text
from persistence.records.status import ExitReason
from tests.loop.wire import Asks, answering, wire
from tests.providers.bench import APIS, client
from tests.providers.faults import Peer, serving
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()
SHOWN = Image("image/png", data=PNG)
LINKED = Image("", url="https://example.org/a.png")


def submitted(bench: Bench, *content: Block, session_id: UUID | None = None, **settings: Any) -> UUID:
    request = submission.Request(content, bench.agent(**settings), session_id=session_id)
    turn_id = submission.submit(bench.database, request).turn_id
    bench.turn_ids.append(turn_id)
    return turn_id


def pictures(api: Api, body: dict[str, Any]) -> list[Any]:
    """The pictures in a request, as the protocol has them."""
    found: list[Any] = []
    for message in body["input" if api is Api.OPENAI_RESPONSES else "messages"]:
        content = message.get("content")
        found += [p for p in content if "image" in p["type"]] if isinstance(content, list) else []
    return [{name: value for name, value in picture.items() if name != "cache_control"} for picture in found]


WANTED: dict[Api, list[Any]] = {
    Api.OPENAI_CHAT: [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ],
    Api.OPENAI_RESPONSES: [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
    ],
    Api.ANTHROPIC: [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ],
}


@pytest.mark.parametrize("api", APIS)
def test_pictures_of_a_request_go_to_its_provider_with_every_request_of_the_session(bench: Bench, api: Api) -> None:
    replies = (wire(Asks("look", "{}", "c1"), finish="tool_calls"),)
    with answering(api, replies, streams=True) as server, client(api, server.url) as model:
        runtime = bench.runtime(models=lambda _name: model)
        turn_id = submitted(bench, Text("What is on these?"), SHOWN, LINKED, model="main:served")
        turn = bench.run(turn_id, runtime)
        bench.run(bench.submit("And now?", session_id=turn.session_id, model="main:served"), runtime)

    assert server.refused == []
    assert [pictures(api, body) for body in server.bodies] == [WANTED[api]] * 3
    assert bench.messages(turn_id)[0].content == (Text("What is on these?"), SHOWN, LINKED)


def test_a_picture_alone_is_a_request_and_nothing_is_none(bench: Bench) -> None:
    bench.script(says("A cat."))
    assert bench.run(submitted(bench, SHOWN)).exit_reason is ExitReason.FINAL_ANSWER

    for content in ((), (Text(" "),)):
        with pytest.raises(Refused, match="the prompt is empty"):
            submitted(bench, *content)


def test_another_picture_is_another_request(bench: Bench) -> None:
    def request(*content: Block) -> submission.Request:
        return submission.Request(content, bench.agent(), idempotency_key="one")

    assert request(Text("x"), SHOWN).hash == request(Text("x"), SHOWN).hash
    assert request(Text("x"), SHOWN).hash != request(Text("x"), LINKED).hash


def test_a_turn_that_is_under_way_takes_no_pictures(bench: Bench) -> None:
    refusals: list[str] = []

    def busy(*_: object) -> Any:
        request = submission.Request(
            (SHOWN,), bench.agent(on_busy=OnBusy.STEER), session_id=bench.view(turn_id).session_id
        )
        with pytest.raises(Refused) as caught:
            submission.submit(bench.database, request)
        refusals.append(str(caught.value))
        return says("Done.")

    bench.script(busy)
    turn_id = bench.submit()
    bench.run(turn_id)

    assert "takes words alone" in refusals[0]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "This model does not support image input."),
        (404, "No endpoints found that support image input"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
    ],
    ids=["a refusal", "a router", "a local server"],
)
def test_a_model_that_cannot_see_is_not_asked_again(bench: Bench, api: Api, status: int, said: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(status, f'{{"error": {{"message": "{said}"}}}}'.encode())

    with serving(script) as server, client(api, server.url) as model:
        turn_id = submitted(bench, Text("What is this?"), SHOWN, model="main:served")
        turn = bench.run(turn_id, bench.runtime(models=lambda _name: model))

    assert turn.exit_reason is ExitReason.PROVIDER_FAILED
    rows = bench.database.rows("SELECT error FROM model_calls WHERE turn_id = %(id)s", {"id": turn_id})
    assert [r["error"] for r in rows] == [ErrorClass.FORMAT_ERROR]


def test_a_picture_weighs_what_providers_count_and_not_its_bytes(bench: Bench) -> None:
    bench.script(asks(("look", "{}")), says("Done."))
    huge = Image("image/png", data="A" * 4_000_000)
    turn_id = submitted(bench, Text("What is this?"), huge, context_window=20_000)
    bench.run(turn_id)

    request = bench.messages(turn_id)[0]
    assert 1_500 <= rough_tokens(request) < 1_600
    assert "compression.done" not in bench.events(turn_id)
    assert transcript.line(request, transcript.WHOLE) == "[1] User: What is this?\n(a picture)"
