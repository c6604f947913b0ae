"""What OpenAI Responses is sent: every item as it was issued, with the neighbours it was issued with, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestration.ports import Reply
from orchestration.providers.openai_responses.decoding import ResponsesDecoder
from orchestration.providers.openai_responses.encoding import ResponsesEncoder
from persistence.records.message import (
    Block,
    Call,
    Image,
    Message,
    Native,
    Opaque,
    Role,
    Text,
    Thinking,
    content_from_json,
    content_to_json,
)
from tests.providers.bench import assistant, message, request, results, user

THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "c2Vj", "content": []}
SAID = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "Let me add.", "annotations": [], "logprobs": []}],
}
CALLED = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "c1",
    "name": "add",
    "arguments": '{ "a":1.0 }',
    "namespace": "sums",
}
SEARCHED = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}}


def answered(*items: dict[str, Any], provider: str = "main") -> Message:
    """The answer that consists of these items, as it is kept."""
    decoder = ResponsesDecoder(provider, lambda _: None)
    decoder.document({"output": list(items)})
    said: Reply = decoder.reply(None)
    return assistant(*said.content)


def sent(*history: Message, provider: str = "main", extra: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return json.loads(ResponsesEncoder(provider, extra or {})(request([user("x"), *history], **more)))


def items(*history: Message, provider: str = "main", **extra: Any) -> list[dict[str, Any]]:
    return sent(*history, provider=provider, extra=extra)["input"][1:]


def without(kind: type[Block], one: Message) -> Message:
    return assistant(*(b for b in one.content if not isinstance(b, kind)))


# --- items


def test_an_answer_goes_back_item_by_item_as_it_came() -> None:
    assert items(answered(THOUGHT, SAID, SEARCHED, CALLED)) == [THOUGHT, SAID, SEARCHED, CALLED]


def test_a_message_of_several_parts_is_one_item_again_and_two_messages_are_two() -> None:
    odd = {"type": "output_hologram", "shape": 1}
    several = {**SAID, "content": [*SAID["content"], odd, {"type": "refusal", "refusal": "But no more."}]}
    other = {**SAID, "id": "msg_2"}

    assert items(answered(several, other)) == [several, other]


def test_items_without_an_id_go_back_without_one() -> None:
    bare = [{k: v for k, v in item.items() if k != "id"} for item in (THOUGHT, SAID, CALLED)]

    assert items(answered(*bare)) == bare


def test_an_empty_message_and_a_blank_one_are_kept_for_the_reasoning_before_them() -> None:
    empty, blank = {**SAID, "content": []}, {**SAID, "content": [{"type": "output_text", "text": ""}]}

    assert items(answered(THOUGHT, empty)) == [THOUGHT, empty]
    assert items(answered(THOUGHT, blank)) == [THOUGHT, blank]


def test_another_provider_sees_neutral_words_and_calls() -> None:
    assert items(answered(THOUGHT, SAID, SEARCHED, CALLED), provider="other") == [
        {"role": "assistant", "content": "Let me add."},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{ "a":1.0 }'},
    ]


def test_what_another_api_of_the_same_name_had_issued_is_not_sent() -> None:
    thought = Thinking("hm", Native("main", {"type": "thinking", "signature": "c2ln"}))
    call = Call("c1", "add", "{}", Native("main", {"caller": {"type": "direct"}}))
    noted = Text("Four.", Native("main", {"citations": [1]}))

    assert items(assistant(thought, Opaque(Native("main", {"type": "server_tool_use"})), noted, call)) == [
        {"role": "assistant", "content": "Four."},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
    ]


def test_reasoning_that_nothing_follows_is_left_out() -> None:
    second = {**THOUGHT, "id": "rs_2"}

    assert items(answered(THOUGHT, second)) == []
    assert items(answered(THOUGHT, SAID, second)) == [THOUGHT, SAID]
    assert items(without(Call, answered(THOUGHT, CALLED)), user("y")) == [{"role": "user", "content": "y"}]


def test_an_item_whose_reasoning_is_gone_is_not_named_by_its_id() -> None:
    history = without(Thinking, answered(THOUGHT, SAID, SEARCHED, CALLED))

    assert items(history) == [
        {"role": "assistant", "content": "Let me add."},
        {k: v for k, v in CALLED.items() if k != "id"},
    ]


def test_only_what_was_issued_after_reasoning_depends_on_it() -> None:
    second = {**THOUGHT, "id": "rs_2"}
    said = answered(SAID, THOUGHT, SEARCHED, second, CALLED)
    history = assistant(*(b for b in said.content if not (isinstance(b, Thinking) and "rs_2" in str(b.native.data))))

    assert items(history) == [SAID, THOUGHT, SEARCHED, {k: v for k, v in CALLED.items() if k != "id"}]


@pytest.mark.parametrize("encrypted", [{"encrypted_content": None}, {"encrypted_content": ""}])
def test_reasoning_that_is_neither_encrypted_nor_stored_is_left_out(encrypted: dict[str, Any]) -> None:
    bare = {**THOUGHT, **encrypted}

    assert items(answered(bare, SAID)) == [{"role": "assistant", "content": "Let me add."}]
    assert items(answered(bare, SAID), store=True) == [bare, SAID]


def test_reasoning_that_is_open_goes_back() -> None:
    """Models that anybody can run show all of it, and have nothing to encrypt."""
    shown = {**THOUGHT, "encrypted_content": None, "content": [{"type": "reasoning_text", "text": "1 + 1"}]}

    assert items(answered(shown, SAID)) == [shown, SAID]


def test_an_item_keeps_its_bytes_from_request_to_request() -> None:
    encoder = ResponsesEncoder("main", {})
    history = [user("x"), answered(THOUGHT, SAID, CALLED), results(("c1", "3"))]

    first = encoder(request(history))
    second = encoder(request([*history, user("y")]))

    assert second.startswith(first.removesuffix(b"]}"))


def test_another_worker_sends_an_answer_with_the_same_bytes() -> None:
    said = answered(THOUGHT, {**SAID, "content": [*SAID["content"], {"type": "odd", "n": 1.0}]}, SEARCHED, CALLED)
    loaded = assistant(*content_from_json(json.loads(content_to_json(said.content))))

    assert ResponsesEncoder("main", {})(request([loaded])) == ResponsesEncoder("main", {})(request([said]))


# --- what is said to the model


def test_results_and_words_are_items_of_their_own_in_the_order_of_the_history() -> None:
    history = [
        assistant(Call("c1", "add", "{}"), Call("c2", "add", "[]")),
        results(("c1", ""), ("c2", "4")),
        user(" "),
        message(Role.USER, Text("Be"), Text("quick.")),
    ]

    assert items(*history)[2:] == [
        {"type": "function_call_output", "call_id": "c1", "output": ""},
        {"type": "function_call_output", "call_id": "c2", "output": "4"},
        {"role": "user", "content": "Be\n\nquick."},
    ]


def test_pictures_are_parts() -> None:
    picture = message(
        Role.USER, Text("Look:"), Image("image/png", data="aGk="), Image("", url="https://example.com/x.png")
    )

    assert items(picture) == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look:"},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
                {"type": "input_image", "image_url": "https://example.com/x.png", "detail": "auto"},
            ],
        }
    ]


def test_arguments_are_sent_to_the_byte_or_as_an_empty_object() -> None:
    written = '{ "b": 1.0,\n "a": [1e2, "caf\\u00e9"] }'

    kept, cut = items(assistant(Call("c1", "add", written), Call("c2", "add", '{"a": 1')))

    assert (kept["arguments"], cut["arguments"]) == (written, "{}")


# --- the request as a whole


def test_nothing_is_stored_and_reasoning_comes_encrypted_unless_the_configuration_says_so() -> None:
    plain = sent()
    changed = sent(extra={"store": True, "include": []})

    assert (plain["stream"], plain["store"], plain["include"]) == (True, False, ["reasoning.encrypted_content"])
    assert (changed["stream"], changed["store"], changed["include"]) == (True, True, [])


@pytest.mark.parametrize("extra", [{}, {"store": True}])
def test_the_whole_history_is_sent_also_where_the_provider_keeps_it(extra: dict[str, Any]) -> None:
    body = sent(answered(SAID), user("y"), extra=extra)

    assert len(body["input"]) == 3
    assert "previous_response_id" not in body


@pytest.mark.parametrize(
    ("model", "is_asked"),
    [
        ("gpt-5.5", True),
        ("gpt-5-mini", True),
        ("o3", True),
        ("openai/gpt-5.6-sol", True),
        ("my-deployment", True),
        ("gpt-4o", False),
        ("gpt-4.1-mini-2025-04-14", False),
        ("gpt-3.5-turbo", False),
        ("openai/gpt-4o", False),
        ("ft:gpt-4.1-nano:acme::1", False),
        ("chatgpt-4o-latest", False),
        ("gpt-5-chat-latest", False),
    ],
)
def test_a_model_that_does_not_reason_is_not_asked_for_reasoning(model: str, is_asked: bool) -> None:
    assert ("include" in sent(model=model)) is is_asked


@pytest.mark.parametrize(("wanted", "asked"), [(500, 500), (16, 16), (15, 16), (1, 16)])
def test_less_output_than_the_api_takes_is_not_asked_for(wanted: int, asked: int) -> None:
    assert sent(max_output_tokens=wanted)["max_output_tokens"] == asked


def test_no_limit_of_output_is_none() -> None:
    assert "max_output_tokens" not in sent()


def test_tools_are_flat_and_not_strict() -> None:
    (tool,) = sent()["tools"]

    assert (tool["type"], tool["name"], tool["strict"]) == ("function", "add", False)


def test_a_background_response_is_stored_and_not_streamed() -> None:
    encoder = ResponsesEncoder("main", {"background": True})
    body = json.loads(encoder(request([user("x")])))

    assert encoder.is_background
    assert (body["background"], body["store"]) == (True, True)
    assert "stream" not in body


@pytest.mark.parametrize("extra", [{}, {"background": False}, {"background": True, "stream": True}, {"store": True}])
def test_anything_else_is_awaited(extra: dict[str, Any]) -> None:
    encoder = ResponsesEncoder("main", extra)

    assert not encoder.is_background
    assert json.loads(encoder(request([user("x")])))["stream"] is True


def test_a_blank_system_prompt_is_none() -> None:
    assert sent()["instructions"] == "Be brief."
    assert "instructions" not in sent(system=" ")
