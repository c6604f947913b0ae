"""What compatible servers do to the Chat Completions protocol, event by event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestration.ports import Finish, Reply
from orchestration.providers.failures import Malformed, Reported
from orchestration.providers.openai_chat.decoding import OpenAIDecoder
from persistence.records.message import Call, Native, Opaque, Text, Thinking
from persistence.records.usage import Usage
from tests.providers.bench import collecting


def read(*deltas: dict[str, Any], finish: str | None = "stop", heard: list[str] | None = None, **last: Any) -> Reply:
    decoder = OpenAIDecoder("main", collecting(heard))
    for delta in deltas:
        decoder.event("message", json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
    decoder.event("message", json.dumps({"choices": [{"delta": {}, "finish_reason": finish}], **last}))
    return decoder.reply(None)


def calling(*fragments: dict[str, Any]) -> Reply:
    return read(*({"tool_calls": [fragment]} for fragment in fragments), finish="tool_calls")


@pytest.mark.parametrize(
    "fragments",
    [
        pytest.param(
            [
                {"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}},
                {"index": 0, "function": {"arguments": '{"a":1}'}},
                {"index": 1, "id": "c2", "function": {"name": "sub", "arguments": '{"a"'}},
                {"index": 1, "function": {"arguments": ":2}"}},
            ],
            id="as the protocol has it",
        ),
        pytest.param(
            [
                {"id": "c1", "function": {"name": "add", "arguments": '{"a"'}},
                {"function": {"arguments": ":1}"}},
                {"id": "c2", "function": {"name": "sub", "arguments": '{"a"'}},
                {"function": {"arguments": ":2}"}},
            ],
            id="no index",
        ),
        pytest.param(
            [
                {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a":1}'}},
                {"index": 0, "id": "c2", "function": {"name": "sub", "arguments": '{"a":2}'}},
            ],
            id="one index for all",
        ),
        pytest.param(
            [
                {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a"'}},
                {"index": 0, "id": "c1", "function": {"name": "add", "arguments": ":1}"}},
                {"index": 1, "id": "c2", "function": {"name": "sub", "arguments": '{"a":2}'}},
                {"index": 1, "id": "", "function": {"name": "", "arguments": ""}},
            ],
            id="id and name in every chunk",
        ),
        pytest.param(
            [
                {"index": 1, "id": "c1", "function": {"name": "add", "arguments": '{"a":1}'}},
                {"index": 3, "id": "c2", "function": {"name": "sub", "arguments": None}},
                {"index": 3, "id": None, "function": {"name": None, "arguments": '{"a":2}'}},
            ],
            id="gaps and nulls",
        ),
        pytest.param(
            [
                {"index": 0, "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}},
                {"index": 1, "id": "c2", "function": {"name": "sub", "arguments": {"a": 2}}},
            ],
            id="arguments as objects",
        ),
    ],
)
def test_two_calls_are_told_apart(fragments: list[dict[str, Any]]) -> None:
    reply = calling(*fragments)

    assert reply.content == (Call("c1", "add", '{"a":1}'), Call("c2", "sub", '{"a":2}'))
    assert reply.finish is Finish.TOOL_CALLS


@pytest.mark.parametrize("nothing", [{}, {"id": ""}, {"id": None}])
def test_calls_without_an_id_are_still_two_calls(nothing: dict[str, Any]) -> None:
    reply = calling(
        {"index": 0, **nothing, "function": {"name": "add", "arguments": '{"a":1}'}},
        {"index": 0, **nothing, "function": {"name": "sub", "arguments": '{"a":2}'}},
    )

    assert reply.content == (Call("", "add", '{"a":1}'), Call("", "sub", '{"a":2}'))


def test_the_legacy_function_call_is_a_call() -> None:
    reply = read(
        {"function_call": {"name": "add", "arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
        finish="function_call",
    )

    assert (reply.content, reply.finish) == ((Call("", "add", '{"a":1}'),), Finish.TOOL_CALLS)


def test_what_a_call_says_beside_its_name_and_arguments_is_kept_for_its_issuer() -> None:
    signature = {"google": {"thought_signature": "c2ln"}}

    reply = calling(
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "add"}, "extra_content": signature},
        {"index": 0, "function": {"arguments": "{}"}},
    )

    assert reply.content == (Call("c1", "add", "{}", Native("main", {"extra_content": signature})),)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_thinking_and_not_text(name: str) -> None:
    heard: list[str] = []

    reply = read({name: "Let me "}, {name: "see."}, {"content": "Four."}, heard=heard)

    assert reply.content == (Thinking("Let me see.", Native("main", {"field": name})), Text("Four."))
    assert heard == ["Four."]


def test_reasoning_details_go_back_whole() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x1", "index": 0}, {"type": "reasoning.text", "text": "y"}]

    reply = read({"reasoning_details": details[:1]}, {"reasoning_details": details[1:]}, {"content": "Four."})

    assert reply.content[0] == Thinking("", Native("main", {"field": "reasoning", "reasoning_details": details}))


def test_a_refusal_in_words_is_a_refusal_whatever_the_finish_reason_says() -> None:
    reply = read({"refusal": "I "}, {"refusal": "won't."})

    assert reply.finish is Finish.REFUSAL
    assert reply.content == (Text("I won't.", Native("main", {"field": "refusal"})),)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("length", Finish.LENGTH),
        ("content_filter", Finish.REFUSAL),
        ("model_length", Finish.WINDOW),
        ("end_turn", Finish.STOP),
    ],
)
def test_finish_reasons_mean_what_they_mean(reason: str, finish: Finish) -> None:
    assert read({"content": "x"}, finish=reason).finish is finish


@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource"])
def test_a_finish_reason_that_means_failure_is_an_error(reason: str) -> None:
    with pytest.raises(Reported):
        read({"content": "x"}, finish=reason)


@pytest.mark.parametrize("reason", [None, ""])
def test_no_finish_reason_is_no_answer(reason: str | None) -> None:
    with pytest.raises(Malformed):
        read({"content": "x"}, finish=reason)


def test_content_in_parts_is_text_and_what_is_unknown_is_kept() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}

    reply = read({"content": [thought]}, {"content": [{"type": "text", "text": "Four."}]})

    assert reply.content == (Opaque(Native("main", thought)), Text("Four."))


def test_citations_are_kept_beside_the_text() -> None:
    note = {"type": "url_citation", "url_citation": {"url": "https://example.com"}}

    reply = read({"content": "Four."}, {"annotations": [note]})

    assert reply.content == (Text("Four.", Native("main", {"annotations": [note]})),)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, Usage(10, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": None}, Usage(10, 5)),
        (
            {"prompt_tokens": 10, "completion_tokens": None, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(2, 0, 8),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(3, 5, 4, 3, 2),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            Usage(10, 12, 0, 0, 7),
        ),
        ({"prompt_tokens": 10.0, "completion_tokens": 5.0}, Usage(10, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 10**30}, Usage(10, 0)),
        ({"prompt_tokens": 10, "completion_tokens": "5", "total_tokens": 1e99}, Usage(10, 0)),
        ({}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
        ({"prompt_tokens": -1, "completion_tokens": 2}, None),
    ],
)
def test_every_field_of_usage_may_be_missing_or_make_no_sense(told: dict[str, Any], usage: Usage | None) -> None:
    assert read({"content": "x"}, usage=told).usage == usage


@pytest.mark.parametrize(
    "last",
    [
        {"usage": None, "choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 7}}]},
        {"x_groq": {"id": "req_1", "usage": {"prompt_tokens": 7, "completion_tokens": 0}}},
    ],
    ids=["Moonshot", "Groq"],
)
def test_usage_is_read_where_vendors_tell_it(last: dict[str, Any]) -> None:
    assert read({"content": "x"}, **last).usage == Usage(7, 0)


def test_usage_that_makes_no_sense_does_not_replace_one_that_did() -> None:
    decoder = OpenAIDecoder("main", collecting(None))
    for told in ({"prompt_tokens": 7, "completion_tokens": 2}, {"prompt_tokens": 0, "completion_tokens": 0}, None):
        decoder.event("message", json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": told}))

    assert decoder.reply(None).usage == Usage(7, 2)


@pytest.mark.parametrize("content", [["Hel", "lo"], [{"type": "output_text", "text": "Hello"}]])
def test_words_are_read_from_any_list_of_parts(content: list[Any]) -> None:
    heard: list[str] = []

    assert read({"content": content}, heard=heard).content == (Text("Hello"),)
    assert "".join(heard) == "Hello"


def test_no_usage_is_no_usage() -> None:
    assert read({"content": "x"}, usage=None).usage is None


def test_an_empty_reply_is_returned_as_it_is() -> None:
    assert read({"role": "assistant", "content": ""}).content == ()


def test_text_is_cleaned_and_an_emoji_cut_in_two_is_whole_again() -> None:
    heard: list[str] = []
    decoder = OpenAIDecoder("main", collecting(heard))

    for piece in ("a\x00b \ud83d", "\ude00 \udfff"):
        decoder.event("message", json.dumps({"choices": [{"delta": {"content": piece}}]}))
    decoder.event("message", '{"choices":[{"delta":{},"finish_reason":"stop"}]}')

    assert decoder.reply(None).content == (Text("a�b \U0001f600 �"),)
    assert heard == ["a�b ", "\U0001f600 �"]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r'{"a": "caf\u00e9",  "b": [1.0, 1e5]}', r'{"a": "caf\u00e9",  "b": [1.0, 1e5]}'),
        (r'{"a": "\ud83d\ude00"}', r'{"a": "\ud83d\ude00"}'),
        (r'{"a": "\ud800", "b\u0000": 1}', '{"a":"�","b�":1}'),
        (r'{"a": "\\ud800"}', r'{"a": "\\ud800"}'),
        (r'{"a": "\ud800', r'{"a": "\ud800'),
        ("", ""),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_arguments_stay_the_models_own_text_unless_no_one_could_take_it(written: str, kept: str) -> None:
    reply = calling({"index": 0, "id": "c1", "function": {"name": "add", "arguments": written}})

    assert reply.content == (Call("c1", "add", kept),)


def test_only_the_first_choice_is_read() -> None:
    decoder = OpenAIDecoder("main", [].append)
    choices = [{"index": 1, "delta": {"content": "other"}}]
    decoder.event("message", json.dumps({"choices": choices}))
    decoder.event(
        "message", json.dumps({"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": "stop"}]})
    )

    assert decoder.reply(None).content == (Text("one"),)


@pytest.mark.parametrize(
    "noise",
    ['{"choices": null}', '{"choices": [null]}', '{"choices": [{"delta": null}]}', '{"id": "x"}', ""],
)
def test_an_event_that_says_nothing_is_no_token(noise: str) -> None:
    decoder = OpenAIDecoder("main", [].append)

    assert decoder.event("message", noise) is False
    assert not decoder.is_whole
