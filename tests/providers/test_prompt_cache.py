"""Providers are told what of a request they have seen before, and the request is the same bytes but for that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from orchestration.providers.anthropic_messages.encoding import AnthropicEncoder
from orchestration.providers.openai_chat.encoding import OpenAIEncoder
from orchestration.providers.openai_responses.encoding import ResponsesEncoder
from orchestration.providers.settings import Api, ProviderSettings
from persistence.records.message import Call, Image, Message, Native, Opaque, Role, Text, Thinking
from tests.providers.bench import ask, assistant, client, iterations, message, request, results, user
from tests.providers.faults import Peer, serving, whole

MARK = {"type": "ephemeral"}
MARK_BYTES = b',"cache_control":{"type":"ephemeral"}'
OWN = Native("main", {"type": "thinking", "signature": "s"})
SEARCHED = Opaque(Native("main", {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}))


def marked(*history: Message, extra: dict[str, Any] | None = None, **more: Any) -> bytes:
    return AnthropicEncoder("main", extra or {}, marks_cache=True)(request(history, **more))


def plain(*history: Message, **more: Any) -> bytes:
    return AnthropicEncoder("main", {})(request(history, **more))


def places(body: bytes) -> list[tuple[int, int]]:
    """Message and block of every mark in the conversation."""
    messages = json.loads(body)["messages"]
    return [
        (n, k)
        for n, one in enumerate(messages)
        for k, block in enumerate(one["content"])
        if block.get("cache_control") == MARK
    ]


def long_turn() -> Sequence[Message]:
    return iterations(4)


def test_the_system_prompt_and_the_last_three_messages_carry_a_mark() -> None:
    body = marked(*long_turn())
    assert json.loads(body)["system"] == [{"type": "text", "text": "Be brief.", "cache_control": MARK}]
    assert places(body) == [(6, 0), (7, 1), (8, 0)]


def test_marks_change_no_other_byte() -> None:
    for n in range(1, 5):
        history = iterations(n)
        assert marked(*history).replace(MARK_BYTES, b"") == plain(*history)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([user("Hi.")], [(0, 0)]),
        ([user("Hi."), assistant(Text("Hello."))], [(0, 0), (1, 0)]),
        ([message(Role.USER, Text("Look."), Image("image/png", "AAAA"))], [(0, 1)]),
        # joined: two users in a row, and a result with words after it
        ([user("Hi."), user("There.")], [(0, 1)]),
        (
            [user("Hi."), assistant(Call("c", "add", "{}")), results(("c", "3")), user("Also.")],
            [(0, 0), (1, 0), (2, 1)],
        ),
        # thinking never carries one: alone it is not sent at all, before words it stays behind them
        ([user("Hi."), assistant(Thinking("hm", OWN), Text("Yes.")), user("So?")], [(0, 0), (1, 1), (2, 0)]),
        ([user("Hi."), assistant(Thinking("hm", OWN)), user("So?")], [(0, 1)]),
        # a block of a type that we do not know may not take one, so another message does
        (
            [user("Hi."), assistant(Text("See."), SEARCHED), user("So?"), assistant(Text("Yes."))],
            [(0, 0), (2, 0), (3, 0)],
        ),
    ],
)
def test_each_mark_is_on_the_last_block_that_can_carry_one(
    history: Sequence[Message], found: list[tuple[int, int]]
) -> None:
    body = marked(*history)
    assert places(body) == found
    assert body.replace(MARK_BYTES, b"") == plain(*history)


def test_without_a_system_prompt_only_messages_are_marked() -> None:
    body = marked(*long_turn(), system=" ")
    assert "system" not in json.loads(body)
    assert body.count(MARK_BYTES) == 3


def test_a_mark_of_the_users_own_counts_more() -> None:
    own = {"type": "ephemeral", "ttl": "1h"}
    body = marked(*long_turn(), extra={"cache_control": own})
    assert json.loads(body)["cache_control"] == own
    assert MARK_BYTES not in body


def test_a_moving_mark_leaves_the_bytes_of_a_message_as_they_were() -> None:
    encoder = AnthropicEncoder("main", {}, marks_cache=True)
    history = long_turn()
    once = encoder(request(history))
    later = [*history, assistant(Text("So.")), user("And?")]
    encoder(request(later))
    assert encoder(request(history)) == once


@pytest.mark.parametrize("made", [OpenAIEncoder, ResponsesEncoder])
def test_the_cache_key_is_sent_where_the_provider_takes_it(made: type[OpenAIEncoder | ResponsesEncoder]) -> None:
    asked = request([user("Hi.")], cache_key="k")
    assert json.loads(made("main", {}, sends_cache_key=True)(asked))["prompt_cache_key"] == "k"
    assert "prompt_cache_key" not in json.loads(made("main", {})(asked))
    assert "prompt_cache_key" not in json.loads(made("main", {}, sends_cache_key=True)(request([user("Hi.")])))
    own = made("main", {"prompt_cache_key": "mine"}, sends_cache_key=True)(asked)
    assert json.loads(own)["prompt_cache_key"] == "mine"


@pytest.mark.parametrize(
    ("host", "setting", "sends"),
    [
        ("api.openai.com", None, True),
        ("eu.api.openai.com", None, True),
        ("api.openai.com", False, False),
        ("127.0.0.1", None, False),
        ("api.openai.com.example.org", None, False),
        ("notapi.openai.com", None, False),
        ("openrouter.ai", None, False),
        ("openrouter.ai", True, True),
    ],
)
def test_only_the_companys_own_address_gets_the_key_unasked(host: str, setting: bool | None, sends: bool) -> None:
    assert ProviderSettings("main", Api.OPENAI_CHAT, prompt_cache=setting).sends_cache_key(host) is sends


@pytest.mark.parametrize(
    ("api", "setting", "marks", "key"),
    [
        (Api.ANTHROPIC, None, True, False),
        (Api.ANTHROPIC, True, True, False),
        (Api.ANTHROPIC, False, False, False),
        (Api.OPENAI_CHAT, None, False, False),
        (Api.OPENAI_CHAT, True, False, True),
        (Api.OPENAI_RESPONSES, None, False, False),
        (Api.OPENAI_RESPONSES, True, False, True),
    ],
)
def test_the_setting_of_a_provider_reaches_its_requests(api: Api, setting: bool | None, marks: bool, key: bool) -> None:
    bodies: list[bytes] = []

    def answer(peer: Peer) -> None:
        bodies.append(peer.request()[2])
        peer.send(whole(api))

    with serving(answer) as server, client(api, server.url, prompt_cache=setting) as asked:
        ask(asked, cache_key="k")
    assert (MARK_BYTES in bodies[0]) is marks
    assert (b'"prompt_cache_key":"k"' in bodies[0]) is key
