"""Ids of calls in the one length that a server takes: the same ones every time, and no two alike."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

import pytest

from ops.dev.scripted_provider.script import reply
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.providers.wire.call_ids import fitted
from persistence.records.message import (
    Call,
    CallStatus,
    Image,
    Message,
    Native,
    Result,
    Role,
    Text,
    content_to_json,
)
from tests.providers.bench import APIS, ask, assistant, client, iterations, message, results, user
from tests.support.provider import ScriptedProvider, provider

__all__ = ["provider"]

NINE = re.compile(r"[a-zA-Z0-9]{9}")
IDS = {
    Api.OPENAI_CHAT: r'"(?:tool_call_id|tool_calls":\[\{"id)":"([^"]*)"',
    Api.OPENAI_RESPONSES: r'"call_id":"([^"]*)"',
    Api.ANTHROPIC: r'"tool_use(?:","id|_id)":"([^"]*)"',
}


def ids(messages: Any) -> list[str]:
    return [b.id for m in messages for b in m.content if isinstance(b, Call | Result)]


def history(*call_ids: str) -> list[Message]:
    told = [user("Add some numbers.")]
    for call_id in call_ids:
        told += [assistant(Call(call_id, "add", "{}")), results((call_id, "3"))]
    return told


def test_every_id_fits_and_a_result_is_still_that_of_its_call() -> None:
    odd = [f"call_{uuid4().hex}", "c1", "toolu_01ABCDEFGHIJ", "ünïcode", "abcDEF123"]

    found = ids(fitted(history(*odd), 9))

    assert all(NINE.fullmatch(one) for one in found)
    assert found[::2] == found[1::2], "each call, and its result"
    assert len({*found}) == len(odd)
    assert found[-1] == "abcDEF123", "one that fits stays"


def test_an_id_keeps_its_name_as_the_history_grows_and_in_any_process() -> None:
    long = history(*(f"call_{n}" for n in range(50)))

    assert ids(fitted(long, 9))[:40] == ids(fitted(long[:41], 9))
    assert ids(fitted(history("call_1"), 9)) == ["SDuU76nh7"] * 2


def test_a_message_is_the_same_one_every_time_so_that_its_bytes_are_made_once() -> None:
    long = history("call_1", "abcDEF123", "call_2")

    first, second = fitted(long, 9), fitted([*long, *history("call_3")], 9)

    assert all(one is other for one, other in zip(first, second, strict=False))
    assert [one is other for one, other in zip(first, long, strict=True)] == [
        True,
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_two_ids_that_would_get_one_name_get_two() -> None:
    """Told by names so short that they run out: 300 of 3,844."""
    found = ids(fitted(history(*(f"call_{n}" for n in range(300))), 2))

    assert len({*found}) == 300
    assert found[::2] == found[1::2]


def test_what_stands_beside_a_call_stays_as_it_is() -> None:
    picture = Image("image/png", "aGk=")
    said = message(
        Role.ASSISTANT,
        Text("Let me see."),
        Call("call_1", "add", '{"a": 1}', Native("main", {})),
        wire={"part": "pause"},
    )
    seen = message(Role.TOOL, Result("call_1", "3", CallStatus.FAILED, (picture,)))

    told, answered = fitted([said, seen], 9)

    [name] = {*ids([told, answered])}
    assert told.content == (Text("Let me see."), Call(name, "add", '{"a": 1}', Native("main", {})))
    assert answered.content == (Result(name, "3", CallStatus.FAILED, (picture,)),)
    assert told.is_part


def test_what_is_sent_in_the_place_of_a_message_is_what_is_fitted() -> None:
    stands_for_it = content_to_json((Result("call_1", "short", CallStatus.SUCCEEDED),))
    shown = message(
        Role.TOOL, Result("call_1", "long", CallStatus.SUCCEEDED), wire={"content": json.loads(stands_for_it)}
    )

    [answered] = fitted([shown], 9)

    assert [b.content for b in answered.sent if isinstance(b, Result)] == ["short"]
    assert all(NINE.fullmatch(b.id) for b in answered.sent if isinstance(b, Result))


@pytest.mark.parametrize("api", APIS)
def test_a_provider_is_set_to_one_length_of_ids(provider: ScriptedProvider, api: Api) -> None:
    model = provider.script("nine", lambda _: reply("Done."), call_id_chars=9)

    with client(api, provider.url, key=provider.api_key, call_id_chars=9) as asked:
        ask(asked, iterations(4), model=model)

    [request] = provider.requests("nine")
    assert request.refused is None
    sent = re.findall(IDS[api], json.dumps(request.body, separators=(",", ":")))
    assert len(sent) == 8
    assert all(NINE.fullmatch(one) for one in sent)
    assert sent[::2] == sent[1::2]


@pytest.mark.parametrize(
    ("base_url", "chars"),
    [
        ("https://api.mistral.ai/v1", 9),
        ("https://codestral.mistral.ai/v1", 9),
        ("https://api.openai.com/v1", None),
        ("https://api.mistral.ai.example.com/v1", None),
    ],
)
def test_mistrals_own_addresses_are_known(base_url: str, chars: int | None) -> None:
    host = base_url.split("/")[2]

    assert ProviderSettings("main", Api.OPENAI_CHAT, base_url).fits_call_ids(host) == chars
    assert ProviderSettings("main", Api.OPENAI_CHAT, base_url, call_id_chars=12).fits_call_ids(host) == 12
