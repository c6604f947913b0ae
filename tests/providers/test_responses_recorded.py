"""Every recorded exchange with OpenAI Responses goes through its adapter, and the SDK's own reading of it is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import openai
import pytest

from orchestration.errors import AnswerLost, ErrorClass, ModelError
from orchestration.ports import Finish, Reply, Started, TimeLimits
from orchestration.providers.keyring import Keyring
from orchestration.providers.openai_responses.background import ResponsesClient
from orchestration.providers.openai_responses.client import connect
from orchestration.providers.openai_responses.encoding import ResponsesEncoder
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.stopping import Stop
from persistence.records.message import Block, Call, Opaque, Text, Thinking
from persistence.records.usage import Usage
from tests.providers.bench import KEY, ask, assistant, collecting, request, user
from tests.support.replay import ABSENT, RECORDED, Exchange, exchanges, replaying

REFUSED = {
    "oai-resp-049": ErrorClass.THINKING_SIGNATURE,
    "oai-resp-050": ErrorClass.FORMAT_ERROR,
    "oai-resp-051": ErrorClass.MODEL_NOT_FOUND,
    "oai-resp-052": ErrorClass.MODEL_NOT_FOUND,
    "oai-resp-053": ErrorClass.MODEL_NOT_FOUND,
    "oai-resp-054": ErrorClass.AUTH,
    "syn-oai-503": ErrorClass.OVERLOADED,
}
# Started in the background, and looked for before they were done.
AT_WORK = ("oai-resp-001", "oai-resp-002", "oai-resp-003", "oai-resp-id-001", "oai-resp-id-002")
LOST = {"syn-oai-resp-failed": ErrorClass.SERVER_ERROR, "syn-oai-resp-cancelled": ErrorClass.UNKNOWN}
REFUSING = {"oai-resp-087", "oai-resp-088"}
LIMITS = TimeLimits(5, 5, 5, 20)


def recordings(*names: str, others: bool = False) -> list[Any]:
    """These exchanges as parameters, or all other answers; a single one that skips where the recordings are absent."""
    found = [e for e in exchanges(RECORDED) if e.id in names]
    if others:
        found = [e for e in exchanges(RECORDED) if is_answer(e) and e.id not in names]
    return [pytest.param(e, id=e.id) for e in found] or [
        pytest.param(None, id="absent", marks=pytest.mark.skip(ABSENT))
    ]


def is_answer(exchange: Exchange) -> bool:
    """Whether it asks for a response or for a kept one: not to compact a conversation or to count its tokens."""
    path = exchange.api.split("/")
    return path[0] == "responses" and path[-1] not in ("compact", "input_tokens")


class Bench:
    """The replay server, our client, and the SDK beside it."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        base_url = f"{url}/v1"
        settings = ProviderSettings("main", Api.OPENAI_RESPONSES, base_url, (KEY,))
        self.ours: ResponsesClient = stack.enter_context(closing(connect(settings, Keyring(settings))))
        self.sdk = stack.enter_context(openai.OpenAI(api_key=KEY, base_url=base_url, max_retries=0))

    def reading(self, exchange: Exchange) -> Any:
        """The response as the SDK reads it."""
        is_kept, is_streamed = "/" in exchange.api, exchange.sse is not None
        asked: Any = {"response_id": exchange.id} if is_kept else {"model": exchange.id, "input": "x"}
        read: Any = self.sdk.responses.retrieve if is_kept else self.sdk.responses.create
        return list(read(**asked, stream=True))[-1].response if is_streamed else read(**asked)

    def look(self, exchange: Exchange, heard: list[str] | None = None) -> Reply | Started:
        """One look at a response by our client."""
        sink = collecting(heard)
        if "/" in exchange.api:
            return self.ours.fetch(Started(exchange.id), limits=LIMITS, stop=Stop(), on_text=sink)
        return self.ours.start(request([user("x")], model=exchange.id, limits=LIMITS), stop=Stop(), on_text=sink)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with replaying(*exchanges(RECORDED)) as url, ExitStack() as stack:
        yield Bench(url, stack)


def test_every_recorded_response_is_covered() -> None:
    if not RECORDED.is_dir():
        pytest.skip(ABSENT)

    known = {*REFUSED, *AT_WORK, *LOST}

    assert len([e for e in exchanges(RECORDED) if is_answer(e)]) == 137
    assert len(recordings(*known, others=True)) == 123


@pytest.mark.parametrize("exchange", recordings(*REFUSED, *AT_WORK, *LOST, others=True))
def test_a_recorded_response_is_read_as_the_sdk_reads_it(exchange: Exchange, bench: Bench) -> None:
    heard: list[str] = []
    reply = bench.look(exchange, heard)
    oracle = bench.reading(exchange)

    assert isinstance(reply, Reply)
    output = [item.to_dict() for item in oracle.output]
    assert [ours(block) for block in reply.content] == [said for item in oracle.output for said in theirs(item)]
    assert "".join(heard) == oracle.output_text
    assert reply.finish is finish(exchange, oracle)
    assert reply.usage == usage(oracle.usage)
    assert reply.model == oracle.model
    assert reply.request_id == exchange.headers.get("x-request-id")
    assert sent_back(reply, store=True) == output
    if all(item.get("encrypted_content") for item in output if item["type"] == "reasoning"):
        assert sent_back(reply) == output


@pytest.mark.parametrize("exchange", recordings("oai-resp-004", "oai-resp-038", "oai-resp-089"))
def test_a_recorded_stream_is_read_in_one_attempt(exchange: Exchange, bench: Bench) -> None:
    heard: list[str] = []

    reply = ask(bench.ours, model=exchange.id, heard=heard)

    assert len(heard) > 1
    assert "".join(heard) == "".join(b.text for b in reply.content if isinstance(b, Text))


@pytest.mark.parametrize("exchange", recordings(*AT_WORK))
def test_a_recorded_response_that_is_not_done_has_started(exchange: Exchange, bench: Bench) -> None:
    found = bench.look(exchange)

    assert found == Started(exchange.body["id"])


@pytest.mark.parametrize("exchange", recordings(*REFUSED))
def test_a_recorded_refusal_gets_its_class(exchange: Exchange, bench: Bench) -> None:
    with pytest.raises(ModelError) as caught:
        ask(bench.ours, model=exchange.id)

    assert (caught.value.error, caught.value.status) == (REFUSED[exchange.id], exchange.status)


@pytest.mark.parametrize("exchange", recordings(*LOST))
def test_a_response_that_failed_in_the_background_is_lost(exchange: Exchange, bench: Bench) -> None:
    with pytest.raises(AnswerLost) as caught:
        bench.look(exchange)

    assert caught.value.error is LOST[exchange.id]


def ours(block: Block) -> tuple[Any, ...]:
    """What an answer says in one block, and the item that is kept whole beside it."""
    match block:
        case Text(text=text):
            return (text,)
        case Call(id=call_id, name=name, arguments=arguments):
            return call_id, name, arguments
        case Thinking(text=text, native=native):
            return text, native.data["item"]
        case Opaque(native=native):
            return (native.data["item"],)
        case _:
            raise AssertionError(f"no answer holds {block}")


def theirs(item: Any) -> Iterator[tuple[Any, ...]]:
    """The same of an item of the SDK's."""
    match item.type:
        case "message":
            yield from ((part.refusal if part.type == "refusal" else part.text,) for part in item.content)
        case "function_call":
            yield item.call_id, item.name, item.arguments
        case "reasoning":
            yield "\n\n".join(part.text for part in item.summary), item.to_dict()
        case _:
            yield (item.to_dict(),)


def finish(exchange: Exchange, oracle: Any) -> Finish:
    if oracle.status == "incomplete":
        assert oracle.incomplete_details.reason == "max_output_tokens"
        return Finish.LENGTH
    if exchange.id in REFUSING:
        return Finish.REFUSAL
    return Finish.TOOL_CALLS if any(item.type == "function_call" for item in oracle.output) else Finish.STOP


def usage(told: Any) -> Usage | None:
    if not told.total_tokens:  # one of the recorded servers tells of nothing but zeros, which nobody believes
        return None
    read = told.input_tokens_details.cached_tokens
    written = told.input_tokens_details.cache_write_tokens or 0
    thought = told.output_tokens_details.reasoning_tokens
    return Usage(told.input_tokens - read - written, told.output_tokens, read, written, thought)


def sent_back(reply: Reply, **extra_body: Any) -> list[dict[str, Any]]:
    """The items of the answer in the next request."""
    body = json.loads(ResponsesEncoder("main", extra_body)(request([user("x"), assistant(*reply.content)])))
    return body["input"][1:]
