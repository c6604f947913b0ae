"""What OpenAI Responses and its imitators send, event by event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestration.errors import ErrorClass
from orchestration.ports import Finish, Reply
from orchestration.providers.error_classes import classify
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.openai_responses.decoding import ResponsesDecoder
from persistence.records.message import Block, Call, Native, Opaque, Text, Thinking
from persistence.records.usage import Usage
from tests.providers.bench import collecting, plain

THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "c2Vj"}


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": list(parts)}


def text(said: str) -> dict[str, Any]:
    return {"type": "output_text", "text": said, "annotations": []}


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "add", "arguments": arguments, **more}


def streamed(*events: dict[str, Any], heard: list[str] | None = None) -> ResponsesDecoder:
    decoder = ResponsesDecoder("main", collecting(heard))
    for event in events:
        decoder.event(event.get("type", "message"), json.dumps(event))
    return decoder


def ending(status: str = "completed", *output: Any, **response: Any) -> dict[str, Any]:
    whole = {"id": "resp_1", "status": status, "model": "served", "error": None, "output": list(output), **response}
    return {"type": f"response.{status}", "response": whole}


def read(*output: Any, status: str = "completed", **response: Any) -> Reply:
    return streamed(ending(status, *output, **response)).reply("req_1")


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(piece: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": piece}


# --- items


def test_every_part_of_an_answer_becomes_a_block_in_its_order() -> None:
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    odd = {"type": "output_hologram", "shape": 1}

    reply = read(THOUGHT, message(text("One."), odd, {"type": "refusal", "refusal": "No."}), search, call('{"a": 1}'))

    kinds: list[type[Block]] = [Thinking, Text, Opaque, Text, Opaque, Call]
    assert [type(block) for block in reply.content] == kinds
    assert plain(reply)[1] == Text("One.")
    assert plain(reply)[3] == Text("No.")
    assert plain(reply)[5] == Call("c1", "add", '{"a": 1}')
    assert (reply.model, reply.request_id) == ("served", "req_1")


def test_reasoning_shows_its_summary_or_else_itself() -> None:
    summary = [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}]
    shown = [{"type": "reasoning_text", "text": "1 + 1"}]

    assert read({**THOUGHT, "summary": summary, "content": shown}, call()).content[0] == Thinking(
        "First.\n\nThen.", Native("main", {"item": {**THOUGHT, "summary": summary, "content": shown}})
    )
    assert read({**THOUGHT, "content": shown}, call()).content[0] == Thinking(
        "1 + 1", Native("main", {"item": {**THOUGHT, "content": shown}})
    )


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{ "a":1.0 }', '{ "a":1.0 }'),
        ({"a": 1}, '{"a":1}'),
        (None, "{}"),
        ('{"a": "\\ud800"}', '{"a":"�"}'),
        ('{"a": 1', '{"a": 1'),
    ],
)
def test_arguments_stay_the_models_own_text_unless_no_one_could_take_it(written: Any, kept: str) -> None:
    assert plain(read(call(written))) == (Call("c1", "add", kept),)


def test_a_call_without_a_call_id_is_known_by_its_own() -> None:
    assert plain(read(call(call_id=None))) == (Call("fc_1", "add", "{}"),)


def test_text_is_cleaned_also_in_what_is_kept_whole() -> None:
    reply = read({**THOUGHT, "summary": [{"type": "summary_text", "text": "a\x00"}]}, message(text("b\ud800")))

    assert reply.content[0] == Thinking(
        "a�", Native("main", {"item": {**THOUGHT, "summary": [{"type": "summary_text", "text": "a�"}]}})
    )
    assert plain(reply)[1] == Text("b�")


# --- streams


def test_the_last_event_knows_better_than_those_before_it() -> None:
    early = {**THOUGHT, "encrypted_content": None}

    decoder = streamed(done(0, early), done(1, message(text("Hi"))), ending("completed", THOUGHT, message(text("Hi"))))

    assert decoder.reply(None).content[0] == Thinking("", Native("main", {"item": THOUGHT}))


def test_items_that_are_done_count_where_the_last_event_has_none() -> None:
    decoder = streamed(done(1, call()), done(0, message(text("Hi"))), ending("completed"))

    assert plain(decoder.reply(None)) == (Text("Hi"), Call("c1", "add", "{}"))


def test_text_is_heard_once_whether_it_streams_or_not() -> None:
    heard: list[str] = []
    item = message(text("Hello"))

    streamed(delta("Hel"), delta("lo"), done(0, item), done(1, item), ending("completed", item, item), heard=heard)

    assert heard == ["Hel", "lo", "Hello"]


def test_reasoning_and_refusals_are_not_heard() -> None:
    heard: list[str] = []
    shown = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "Hm"}
    refused = {"type": "response.refusal.delta", "output_index": 1, "content_index": 0, "delta": "No"}

    streamed(shown, refused, ending("completed", message({"type": "refusal", "refusal": "No"})), heard=heard)

    assert heard == []


@pytest.mark.parametrize(
    ("event", "is_news"),
    [
        (delta("x"), True),
        ({"type": "response.output_item.added", "output_index": 0, "item": call("")}, True),
        ({"type": "response.code_interpreter_call.in_progress", "output_index": 0, "item_id": "ci_1"}, True),
        ({"type": "response.never_heard_of", "output_index": 0}, True),
        ({"type": "response.created", "response": {"status": "queued"}}, False),
        ({"type": "response.queued", "response": {"status": "queued"}}, False),
        ({"type": "response.in_progress", "response": {"status": "in_progress"}}, False),
        ({"type": "keepalive", "sequence_number": 3}, False),
        ({"type": "response.in_progress"}, False),
        ({}, False),
    ],
)
def test_only_what_the_model_does_is_a_token(event: dict[str, Any], is_news: bool) -> None:
    decoder = ResponsesDecoder("main", lambda _: None)

    assert decoder.event("message", json.dumps(event)) is is_news
    assert not decoder.is_whole
    assert decoder.usage is None


def test_an_event_that_says_its_type_only_in_its_name_is_read() -> None:
    decoder = ResponsesDecoder("main", lambda _: None)

    decoder.event("response.completed", json.dumps({"response": {"output": [message(text("Hi"))]}}))

    assert plain(decoder.reply(None)) == (Text("Hi"),)


def test_the_end_marker_of_another_protocol_is_none_here() -> None:
    decoder = streamed(delta("x"))
    decoder.event("message", "[DONE]")

    assert decoder.is_closed
    with pytest.raises(Malformed, match="without its end marker"):
        decoder.reply(None)


# --- how it ended


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        (read(message(text("Hi"))), Finish.STOP),
        (read(message(text("Hi")), call()), Finish.TOOL_CALLS),
        (read(message({"type": "refusal", "refusal": "No."})), Finish.REFUSAL),
        (
            read(message(text("Hi")), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            Finish.LENGTH,
        ),
        (read(call('{"a'), status="incomplete", incomplete_details={"reason": "max_output_tokens"}), Finish.LENGTH),
        (
            read(message(text("Hi")), status="incomplete", incomplete_details={"reason": "content_filter"}),
            Finish.REFUSAL,
        ),
        (read(message(text("Hi")), status="incomplete", incomplete_details=None), Finish.LENGTH),
        (read(), Finish.STOP),
    ],
)
def test_why_it_stopped(reply: Reply, finish: Finish) -> None:
    assert reply.finish is finish


@pytest.mark.parametrize(
    ("event", "meant"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "No.", "param": None}, ErrorClass.RATE_LIMIT),
        ({"type": "error", "error": {"type": "server_error", "code": None, "message": "No."}}, ErrorClass.SERVER_ERROR),
        ({"error": {"code": 503, "message": "No."}}, ErrorClass.OVERLOADED),
        (ending("failed", error={"code": "server_error", "message": "No."}), ErrorClass.SERVER_ERROR),
        (ending("failed", error={"code": "rate_limit_exceeded", "message": "No."}), ErrorClass.RATE_LIMIT),
        (ending("failed", error={"code": "invalid_prompt", "message": "No."}), ErrorClass.CONTENT_POLICY),
        (ending("failed"), ErrorClass.UNKNOWN),
        (ending("cancelled"), ErrorClass.UNKNOWN),
    ],
)
def test_an_error_in_the_stream_gets_its_class(event: dict[str, Any], meant: ErrorClass) -> None:
    with pytest.raises(Reported) as caught:
        streamed(delta("x"), event)

    assert classify(None, caught.value.detail, str(caught.value)) is meant


def test_what_a_failed_response_cost_is_kept() -> None:
    decoder = ResponsesDecoder("main", lambda _: None)

    with pytest.raises(Reported):
        decoder.event("", json.dumps(ending("failed", usage={"input_tokens": 10, "output_tokens": 5})))

    assert decoder.usage == Usage(10, 5)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_document_that_failed_is_an_error(status: str) -> None:
    decoder = ResponsesDecoder("main", lambda _: None)

    with pytest.raises(Reported):
        decoder.document({"status": status, "error": {"code": "server_error", "message": "No."}, "output": []})


@pytest.mark.parametrize("body", [{"status": "queued", "output": []}, {"status": "in_progress", "output": []}])
def test_a_document_that_is_at_work_is_no_answer(body: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="no answer yet"):
        ResponsesDecoder("main", lambda _: None).document(body)


@pytest.mark.parametrize("output", [["text"], [None], [message(text("Hi")), 3], [message("a part")]])  # type: ignore[arg-type]
def test_items_that_are_no_objects_are_malformed(output: list[Any]) -> None:
    with pytest.raises(Malformed):
        read(*output)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"input_tokens": 10, "output_tokens": 5}, Usage(10, 5)),
        ({"input_tokens": 10, "output_tokens": 5, "input_tokens_details": None}, Usage(10, 5)),
        (
            {
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(3, 5, 4, 3, 2),
        ),
        ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 9}}, Usage(0, 0, 3)),
        ({"input_tokens": 10, "output_tokens": 10**30}, Usage(10, 0)),
        ({}, None),
        ({"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}, None),
        (None, None),
    ],
)
def test_every_field_of_usage_may_be_missing_or_make_no_sense(told: Any, usage: Usage | None) -> None:
    assert read(message(text("Hi")), usage=told).usage == usage
