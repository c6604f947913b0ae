"""What is sent: the same as the SDKs would send, encoded from neutral history, and every old byte as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest

from orchestration.ports import ModelRequest
from orchestration.providers.anthropic_messages.encoding import AnthropicEncoder
from orchestration.providers.openai_chat.encoding import OpenAIEncoder
from orchestration.providers.openai_responses.encoding import ResponsesEncoder
from orchestration.providers.settings import Api
from persistence.records import parts
from persistence.records.message import (
    Call,
    CallStatus,
    Image,
    Message,
    Native,
    Opaque,
    Result,
    Role,
    Text,
    Thinking,
    content_from_json,
    content_to_json,
)
from tests.providers.bench import ADD, APIS, KEY, ask_once, assistant, iterations, message, request, results, user
from tests.providers.faults import Peer, serving, whole

both = pytest.mark.parametrize("api", APIS)


ENCODERS = {
    Api.OPENAI_CHAT: OpenAIEncoder,
    Api.OPENAI_RESPONSES: ResponsesEncoder,
    Api.ANTHROPIC: AnthropicEncoder,
}
# Where each protocol has the conversation.
HISTORY = {Api.OPENAI_CHAT: "messages", Api.OPENAI_RESPONSES: "input", Api.ANTHROPIC: "messages"}


def encoded(api: Api, asked: ModelRequest, *, provider: str = "main", **extra_body: Any) -> bytes:
    return ENCODERS[api](provider, extra_body)(asked)


def sent(api: Api, *history: Message, provider: str = "main", **more: Any) -> dict[str, Any]:
    return json.loads(encoded(api, request(history, **more), provider=provider))


def conversation(api: Api, *history: Message, **more: Any) -> str:
    """The conversation as it is sent, as JSON text."""
    return json.dumps(sent(api, *history, **more)[HISTORY[api]])


def openai_messages(*history: Message, provider: str = "main") -> list[dict[str, Any]]:
    return sent(Api.OPENAI_CHAT, *history, provider=provider, system="")["messages"]


def anthropic_messages(*history: Message, provider: str = "main") -> list[dict[str, Any]]:
    return sent(Api.ANTHROPIC, *history, provider=provider)["messages"]


def stored_again(history: Sequence[Message]) -> list[Message]:
    """The same messages as another worker loads them."""
    return [replace(m, content=content_from_json(json.loads(content_to_json(m.content)))) for m in history]


# --- as the SDK would send it


def test_the_openai_request_is_what_create_sends() -> None:
    history = [user("Add."), assistant(Text("Sure."), Call("c1", "add", '{"a": 1, "b": 2}')), results(("c1", "3"))]

    def create(url: str) -> None:
        with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0, timeout=None) as sdk:
            call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
            tool = {"name": ADD.name, "description": ADD.description, "parameters": dict(ADD.parameters)}
            arguments: Any = {
                "model": "some-model",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Add."},
                    {"role": "assistant", "content": "Sure.", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": "3"},
                ],
                "tools": [{"type": "function", "function": tool}],
                "tool_choice": "none",
                "max_completion_tokens": 500,
                "stream_options": {"include_usage": True},
            }
            list(sdk.chat.completions.create(**arguments, stream=True))

    assert_same_on_the_wire(Api.OPENAI_CHAT, history, create)


def test_the_responses_request_is_what_create_sends() -> None:
    history = [user("Add."), assistant(Text("Sure."), Call("c1", "add", '{"a": 1, "b": 2}')), results(("c1", "3"))]

    def create(url: str) -> None:
        with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0, timeout=None) as sdk:
            tool = {"name": ADD.name, "description": ADD.description, "parameters": dict(ADD.parameters)}
            arguments: Any = {
                "model": "some-model",
                "instructions": "Be brief.",
                "input": [
                    {"role": "user", "content": "Add."},
                    {"role": "assistant", "content": "Sure."},
                    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'},
                    {"type": "function_call_output", "call_id": "c1", "output": "3"},
                ],
                "tools": [{"type": "function", "strict": False, **tool}],
                "tool_choice": "none",
                "max_output_tokens": 500,
                "store": False,
                "include": ["reasoning.encrypted_content"],
            }
            list(sdk.responses.create(**arguments, stream=True))

    assert_same_on_the_wire(Api.OPENAI_RESPONSES, history, create)


def test_the_anthropic_request_is_what_create_sends() -> None:
    history = [user("Add."), assistant(Text("Sure."), Call("c1", "add", '{"a": 1, "b": 2}')), results(("c1", "3"))]

    def create(url: str) -> None:
        with anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0, timeout=None) as sdk:
            mark = {"cache_control": {"type": "ephemeral"}}
            use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 2}, **mark}
            result = {"type": "tool_result", "tool_use_id": "c1", "content": "3", **mark}
            arguments: Any = {
                "model": "some-model",
                "max_tokens": 500,
                "system": [{"type": "text", "text": "Be brief.", **mark}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Add.", **mark}]},
                    {"role": "assistant", "content": [{"type": "text", "text": "Sure."}, use]},
                    {"role": "user", "content": [result]},
                ],
                "tools": [{"name": ADD.name, "description": ADD.description, "input_schema": dict(ADD.parameters)}],
                "tool_choice": {"type": "none"},
            }
            list(sdk.messages.create(**arguments, stream=True))

    assert_same_on_the_wire(Api.ANTHROPIC, history, create)


def assert_same_on_the_wire(api: Api, history: list[Message], create: Any) -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    def script(peer: Peer) -> None:
        seen.append(peer.request())
        peer.send(whole(api))

    with serving(script) as server:
        ask_once(api, server.url, history=history, may_call_tools=False, max_output_tokens=500)
        create(server.url)

    (our_line, our_headers, our_body), (line, headers, body) = seen
    assert our_line == line
    assert json.loads(our_body) == json.loads(body)
    theirs_alone = {"content-length", "x-stainless-helper", "traceparent"}
    assert {k: v for k, v in our_headers.items() if k not in theirs_alone} == {
        k: v for k, v in headers.items() if k not in theirs_alone
    }


# --- bytes


@both
def test_a_longer_history_begins_with_the_bytes_of_the_shorter_one(api: Api) -> None:
    history = iterations(6)

    bodies = [history_in(api, encoded(api, request(history[:n]))) for n in (1, 3, 5, 9, 13)]

    for shorter, longer in pairwise(bodies):
        assert longer.startswith(shorter)
        assert len(longer) > len(shorter)


@both
def test_another_worker_sends_the_same_bytes(api: Api) -> None:
    history = [
        *iterations(3),
        assistant(Text("ä \U0001f600"), Call("c9", "add", '{ "b":1.0,\n"a":1e2 }')),
        results(("c9", "3")),
    ]

    assert encoded(api, request(stored_again(history))) == encoded(api, request(history))


@both
def test_a_message_is_encoded_once(api: Api) -> None:
    encoder = ENCODERS[api]("main", {})
    history = iterations(3)
    made = encoder._piece
    count: list[Message] = []
    original = made._make
    made._make = lambda one: (count.append(one), original(one))[1]

    for n in (3, 5, 7, 7):
        encoder(request(history[:n]))

    assert count == history


@both
def test_the_bytes_of_a_message_go_with_it(api: Api) -> None:
    encoder = ENCODERS[api]("main", {})

    encoder(request(iterations(3)))

    assert len(encoder._piece._pieces) == 0


@both
def test_the_tools_of_two_agents_are_not_mixed_up(api: Api) -> None:
    encoder = ENCODERS[api]("main", {})

    for n in range(200):
        tool = replace(ADD, name=f"tool_{n}")
        body = json.loads(encoder(request([user("x")], tools=(tool,))))
        assert f"tool_{n}" in json.dumps(body["tools"])


def history_in(api: Api, body: bytes) -> bytes:
    """From the conversation on, without what closes it."""
    return body[body.index(b'"%s":[' % HISTORY[api].encode()) :].removesuffix(b"]}")


# --- who may see what

BOUND: dict[Api, tuple[Thinking, Opaque, Text, Call]] = {
    api: (
        Thinking("Let me see.", Native("main", {"type": "thinking", "signature": "c2ln", "field": "reasoning"})),
        Opaque(Native("main", {"type": "hologram", "shape": 1})),
        Text("Four.", Native("main", {"citations": [{"cited_text": "x"}], "annotations": [1]})),
        Call("c1", "add", "{}", Native("main", {"caller": {"type": "direct"}, "extra_content": {"g": 1}})),
    )
    for api in (Api.OPENAI_CHAT, Api.ANTHROPIC)
}
BOUND[Api.OPENAI_RESPONSES] = (
    Thinking(
        "Let me see.",
        Native(
            "main", {"item": {"type": "reasoning", "summary": [{"text": "Let me see."}], "encrypted_content": "c2ln"}}
        ),
    ),
    Opaque(Native("main", {"item": {"type": "hologram", "shape": 1}})),
    Text(
        "Four.",
        Native(
            "main",
            {"item": {"type": "message"}, "part": {"type": "output_text", "annotations": [{"cited_text": "x"}]}},
        ),
    ),
    Call("c1", "add", "{}", Native("main", {"item": {"id": "fc_1", "caller": {}, "extra_content": {"g": 1}}})),
)


@both
def test_provider_bound_data_goes_to_its_issuer_alone(api: Api) -> None:
    signed, opaque, noted, call = BOUND[api]
    history = [user("x"), assistant(signed, opaque, noted, call), results(("c1", "4"))]

    foreign = conversation(api, *history, provider="other")
    own = conversation(api, *history, provider="main")

    for secret in ("c2ln", "Let me see", "hologram", "cited_text", "caller", "extra_content"):
        assert secret not in foreign
    for kept in ("Let me see", "hologram", "caller", "extra_content"):
        assert kept in own
    assert "Four." in foreign
    assert '"c1"' in foreign


def test_anthropic_gets_its_thinking_back_as_it_came() -> None:
    thinking = Thinking("Let me see.", Native("main", {"type": "thinking", "signature": "c2ln"}))
    redacted = Thinking("", Native("main", {"type": "redacted_thinking", "data": "b3Bh"}))

    assert anthropic_messages(user("x"), assistant(thinking, redacted, Text("Four.")))[1]["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3Bh"},
        {"type": "text", "text": "Four."},
    ]


_OWN = Thinking("hm", Native("main", {"type": "thinking", "signature": "c2ln"}))
_FOREIGN = Thinking("hm", Native("other", {"type": "reasoning"}))
_CALL = Call("c1", "add", "{}")


@pytest.mark.parametrize(
    ("history", "asks"),
    [
        ((user("x"),), True),
        ((user("x"), assistant(_OWN, Text("Let me see."), _CALL), results(("c1", "4"))), True),
        ((user("x"), assistant(Text(" "), _OWN, _CALL), results(("c1", "4"))), True),
        ((user("x"), assistant(_CALL), results(("c1", "4"))), False),
        ((user("x"), assistant(Text("Let me see."), _CALL), results(("c1", "4")), user("and y")), False),
        ((user("x"), assistant(_FOREIGN, _CALL), results(("c1", "4"))), False),
        ((user("x"), assistant(Text("First."), _OWN, _CALL), results(("c1", "4"))), False),
        ((user("x"), assistant(_CALL), results(("c1", "4")), assistant(Text("Four.")), user("y")), True),
    ],
)
def test_anthropic_is_asked_for_thinking_only_where_its_newest_answer_has_its_own(
    history: tuple[Message, ...], asks: bool
) -> None:
    """Else the request would be refused: another model gave that answer, or its thinking cannot go back."""
    for thinking, asked in (({"type": "enabled", "budget_tokens": 1024}, asks), ({"type": "adaptive"}, True)):
        body = json.loads(AnthropicEncoder("main", {"thinking": thinking})(request(history)))

        assert body.get("thinking") == (thinking if asked else None)


def test_a_message_does_not_end_in_thinking() -> None:
    thinking = Thinking("hm", Native("main", {"type": "thinking", "signature": "c2ln"}))

    assert anthropic_messages(user("x"), assistant(thinking, Text("Four."), thinking))[1]["content"] == [
        {"type": "text", "text": "Four."}
    ]
    assert anthropic_messages(user("x"), assistant(thinking), user("y")) == [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}
    ]


def test_reasoning_goes_back_in_the_field_it_came_in() -> None:
    thought = Thinking("Let me see.", Native("main", {"field": "reasoning_content"}))

    own = openai_messages(user("x"), assistant(thought, Call("c1", "add", "{}")), results(("c1", "4")))[1]

    assert own["reasoning_content"] == "Let me see."
    assert own["content"] is None


def test_an_answer_moves_from_one_protocol_to_the_other() -> None:
    call = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    history = [user("x"), assistant(Text("Sure."), Call("toolu_1", "add", '{"a":1}')), results(("toolu_1", "1"))]

    assert openai_messages(*history, provider="other")[1:] == [
        {"role": "assistant", "content": "Sure.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "1"},
    ]
    assert anthropic_messages(*history, provider="other")[1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Sure."},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}]},
    ]


# --- what strict servers refuse


def test_anthropic_gets_everything_of_the_users_in_a_row_as_one_message_results_first() -> None:
    picture = message(
        Role.USER, Text("Look:"), Image("image/png", data="aGk="), Image("", url="https://example.com/x.png")
    )
    history = [
        user("x"),
        assistant(Call("c1", "add", "{}"), Call("c2", "add", "{}")),
        user("And be quick."),
        results(("c2", "2")),
        results(("c1", "1")),
        picture,
    ]

    assert anthropic_messages(*history)[2:] == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "2"},
                {"type": "text", "text": "And be quick."},
                {"type": "text", "text": "Look:"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {"type": "image", "source": {"type": "url", "url": "https://example.com/x.png"}},
            ],
        }
    ]


def test_anthropic_gets_roles_that_alternate() -> None:
    history = [
        user("x"),
        assistant(Text("One,")),
        user(" "),
        assistant(Text("two,")),
        assistant(Text("three.")),
        user("y"),
    ]

    assert anthropic_messages(*history) == [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("One,", "two,", "three.")]},
        {"role": "user", "content": [{"type": "text", "text": "y"}]},
    ]


def test_openai_gets_results_in_call_order_and_one_user_message_after_them() -> None:
    history = [
        user("x"),
        assistant(Call("c1", "add", "{}"), Call("c2", "add", "{}")),
        results(("c2", "2"), ("c1", "1")),
        user('Be "quick".'),
        user("Please."),
    ]

    assert openai_messages(*history)[2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "user", "content": 'Be "quick".\n\nPlease.'},
    ]


def test_openai_gets_pictures_as_parts() -> None:
    picture = message(Role.USER, Image("image/png", data="aGk="), Image("", url="https://example.com/x.png"))

    assert openai_messages(user("Look:"), picture) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}},
            ],
        }
    ]


@pytest.mark.parametrize(
    "written", ["", "  ", '{"a": 1', "[1]", "null", '"text"', "NaN", '{"a": NaN}', "{'a': 1}", "[" * 9999]
)
def test_arguments_that_are_no_object_are_sent_as_an_empty_one_and_kept_as_they_are(written: str) -> None:
    call = Call("c1", "add", written)
    history = [user("x"), assistant(call), results(("c1", "These are no arguments."))]

    assert openai_messages(*history)[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert anthropic_messages(*history)[1]["content"][0]["input"] == {}
    assert call.arguments == written


def test_arguments_are_sent_to_the_byte() -> None:
    written = '{ "b": 1.0,\n "a": [1e2, "caf\\u00e9"] }'
    history = [user("x"), assistant(Call("c1", "add", written)), results(("c1", "3"))]

    assert openai_messages(*history)[1]["tool_calls"][0]["function"]["arguments"] == written
    assert written.encode() in encoded(Api.ANTHROPIC, request(history))


@both
@pytest.mark.parametrize("call_id", ["", "call|fc_1", "ä", "x" * 65, "x" * 41, "a b", "functions.add:0"])
def test_an_id_that_not_every_provider_takes_is_mapped_for_call_and_result_alike(api: Api, call_id: str) -> None:
    history = [user("x"), assistant(Call(call_id, "add", "{}")), results((call_id, "3"))]

    text = conversation(api, *history)

    ids = re.findall(r'"(?:id|call_id|tool_call_id|tool_use_id)": "([^"]*)"', text)
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", ids[0])


@both
def test_a_good_id_is_left_alone(api: Api) -> None:
    history = [user("x"), assistant(Call("a_B-" + "9" * 36, "add", "{}")), results(("a_B-" + "9" * 36, "3"))]

    assert conversation(api, *history).count('"a_B-' + "9" * 36 + '"') == 2


@both
@pytest.mark.parametrize(("name", "wire"), [("", "unnamed"), ("read file.txt", "read_file_txt"), ("x" * 99, "x" * 64)])
def test_a_name_that_the_model_made_up_is_sent_in_characters_that_are_taken(api: Api, name: str, wire: str) -> None:
    history = [user("x"), assistant(Call("c1", name, "{}")), results(("c1", "No such tool."))]

    assert f'"name": "{wire}"' in conversation(api, *history)


def test_empty_and_blank_texts_are_not_sent_to_anthropic() -> None:
    failed = message(Role.TOOL, Result("c1", " ", CallStatus.FAILED))
    history = [user("x"), assistant(Text(""), Text(" \n"), Call("c1", "add", "{}")), failed, user(" "), user("go on")]

    assert anthropic_messages(*history)[1:] == [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    assert "system" not in sent(Api.ANTHROPIC, user("x"), system=" ")


def test_openai_never_gets_null_content_without_calls() -> None:
    foreign = Thinking("hm", Native("other", {"type": "thinking"}))

    assert openai_messages(user("x"), assistant(foreign), user("y"))[1] == {"role": "assistant", "content": ""}
    assert openai_messages(user("x"), assistant(Call("c1", "add", "{}")))[1]["content"] is None


@both
def test_the_grace_call_keeps_its_tools_and_may_use_none(api: Api) -> None:
    ordinary = sent(api, user("x"))
    grace = sent(api, user("x"), may_call_tools=False)

    assert "tool_choice" not in ordinary
    assert grace.pop("tool_choice") == ({"type": "none"} if api is Api.ANTHROPIC else "none")
    assert grace == ordinary


@both
def test_no_tools_means_no_choice_of_them(api: Api) -> None:
    body = sent(api, user("x"), tools=(), may_call_tools=False)

    assert "tools" not in body
    assert "tool_choice" not in body


def test_anthropic_wants_a_list_of_tools_where_the_history_has_calls() -> None:
    assert sent(Api.ANTHROPIC, *iterations(1), tools=())["tools"] == []
    assert "tools" not in sent(Api.OPENAI_CHAT, *iterations(1), tools=())


def test_max_tokens_is_always_there_for_anthropic_and_only_when_set_for_openai() -> None:
    assert sent(Api.ANTHROPIC, user("x"))["max_tokens"] == 16_384
    assert sent(Api.ANTHROPIC, user("x"), max_output_tokens=7)["max_tokens"] == 7
    assert "max_completion_tokens" not in sent(Api.OPENAI_CHAT, user("x"))
    assert sent(Api.OPENAI_CHAT, user("x"), max_output_tokens=7)["max_completion_tokens"] == 7


@both
def test_extra_body_adds_changes_and_takes_out(api: Api) -> None:
    extra = {"service_tier": "flex", "stream_options": None, "thinking": {"type": "adaptive"}}

    body = json.loads(encoded(api, request([user("x")]), **extra))

    assert (body["service_tier"], body["thinking"]) == ("flex", {"type": "adaptive"})
    assert "stream_options" not in body


@both
def test_what_was_sent_in_place_of_the_shown_message_is_sent_again(api: Api) -> None:
    shown = message(Role.USER, Text("Hello."), wire={"content": [{"type": "text", "text": "Hello. (It is Monday.)"}]})

    assert "It is Monday." in json.dumps(sent(api, shown))


@both
def test_text_is_sent_as_utf8_and_not_as_escapes(api: Api) -> None:
    body = encoded(api, request([user("naïve \U0001f600 עברית")]))

    assert "naïve \U0001f600 עברית".encode() in body


SEARCH = Opaque(Native("main", {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}))
FOUND = Opaque(Native("main", {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}))


def paused(*content: Any) -> Message:
    return parts.part(assistant(*content), parts.Why.PAUSE)


def test_a_paused_answer_goes_back_with_the_search_that_it_waits_for() -> None:
    asked = [user("Find it."), paused(Text("Looking."), SEARCH)]

    assert [b["type"] for b in anthropic_messages(*asked)[-1]["content"]] == ["text", "server_tool_use"]
    assert [b["type"] for b in anthropic_messages(*asked, assistant(FOUND, Text("Here.")))[-1]["content"]] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]


@pytest.mark.parametrize("before", [(), (Text("Looking."),), (Thinking("hm", BOUND[Api.ANTHROPIC][0].native),)])
def test_a_search_that_nobody_waits_for_any_more_is_left_out(before: tuple[Any, ...]) -> None:
    """Its turn was stopped, or went on with another model: the API refuses such a call without its result."""
    whole = [assistant(SEARCH, FOUND, Text("Found.")), user("And that?")]

    shown = anthropic_messages(user("Find it."), *whole, paused(*before, replace_id(SEARCH)), user("Never mind."))

    blocks = [block for each in shown for block in each["content"]]
    assert [b["type"] for b in blocks].count("server_tool_use") == 1
    assert "s2" not in json.dumps(shown)
    assert all(a["role"] != b["role"] for a, b in pairwise(shown))


def replace_id(block: Opaque) -> Opaque:
    return Opaque(Native("main", {**block.native.data, "id": "s2"}))
