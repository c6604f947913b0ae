"""The requests that are posted in the SDKs' place carry what theirs carry, and are refused with the SDKs' own errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.providers.settings import Api
from tests.providers.bench import APIS, KEY, ask, client
from tests.providers.faults import Peer, serving, whole

MESSAGES: Any = [{"role": "user", "content": "Hello."}]


def by_chat(url: str) -> None:
    sdk = openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0, timeout=None)
    sdk.chat.completions.create(model="some-model", messages=MESSAGES, stream=True)


def by_responses(url: str) -> None:
    sdk = openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0, timeout=None)
    sdk.responses.create(model="some-model", input=MESSAGES, stream=True)


def by_messages(url: str) -> None:
    sdk = anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0, timeout=None)
    sdk.messages.create(model="some-model", messages=MESSAGES, max_tokens=9, stream=True)


BY_THE_SDK: dict[Api, Callable[[str], None]] = {
    Api.OPENAI_CHAT: by_chat,
    Api.OPENAI_RESPONSES: by_responses,
    Api.ANTHROPIC: by_messages,
}


@pytest.mark.parametrize("api", APIS)
def test_every_request_has_the_first_line_and_the_headers_of_the_sdks_own(api: Api) -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    def script(peer: Peer) -> None:
        while True:
            first, headers, _ = peer.request()
            seen.append((first, {k: v for k, v in headers.items() if k != "content-length"}))
            peer.send(whole(api))

    with serving(script) as server:
        BY_THE_SDK[api](server.url)
        with client(api, server.url) as ours:
            for _ in range(3):
                ask(ours)

    theirs, *own = seen
    assert own == [theirs] * 3


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [304, 400, 401, 429, 503])
def test_a_refusal_is_the_sdks_own_error(api: Api, status: int) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(status, b'{"error": {"message": "No."}}')

    with (
        serving(script) as server,
        client(api, server.url) as ours,
        pytest.raises(ModelError) as refused,
    ):
        ask(ours)

    sdk = anthropic if api is Api.ANTHROPIC else openai
    assert isinstance(refused.value.__cause__, sdk.APIStatusError)
    assert refused.value.status == status
    assert (refused.value.error is ErrorClass.AUTH) == (status == 401)
