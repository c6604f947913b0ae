"""Every row of the error table, from what a provider sends to what the turn does about it.

`SENDS` has for each class what comes over the wire, and is read through each adapter; `COURSES` has for each class the
steps that `decide` takes with the counters that the failed attempts leave. A class that is in neither fails here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestration import answers
from orchestration.decide import decide
from orchestration.errors import ErrorClass as E
from orchestration.errors import ModelError
from orchestration.ports import TimeLimits
from orchestration.providers.settings import Api
from orchestration.remedies import REMEDIES
from orchestration.steps import (
    Backoff,
    CallModel,
    Compress,
    End,
    FallBack,
    GiveUpWorker,
    Repair,
    RepairRequest,
    Signals,
)
from persistence.records.message import Call, CallStatus, Native, Result, Role, Thinking
from persistence.records.outcome import News, Outcome
from persistence.records.turn import Turn
from tests.providers.bench import APIS, ask_once
from tests.providers.faults import (
    END,
    HEADERS,
    PATIENCE_S,
    Peer,
    chunks,
    ending,
    event,
    opening,
    serving,
    text,
)
from tests.pure.turns import asked, message, said, turn

Script = Callable[[Peer, Api], None]
FAST = TimeLimits(5, 5, 5, 20)


@dataclass(frozen=True)
class Sends:
    """What a server does to an attempt, and within which limits."""

    script: Script
    limits: TimeLimits = FAST
    is_tls: bool = False


def refusal(status: int, message: str, code: Any = None, kind: str | None = None, **more: Any) -> list[Sends]:
    """An error as a status, and the same one inside a stream that began with 200."""
    error = {"error": {"message": message, "type": kind, "code": code, **more}}

    def at_once(peer: Peer, _api: Api) -> None:
        peer.request()
        peer.answer(status, json.dumps(error).encode())

    def in_the_stream(peer: Peer, api: Api) -> None:
        peer.request()
        broken = event(api, "error", {"type": "error", **error})
        peer.send(HEADERS, chunks([*opening(api), *text(api, "Hel"), broken]), END)

    return [Sends(at_once), Sends(in_the_stream)]


def streams(events: Callable[[Api], list[bytes]]) -> Script:
    def script(peer: Peer, api: Api) -> None:
        peer.request()
        peer.send(HEADERS, chunks(events(api)), END)

    return script


def hangs(events: Callable[[Api], list[bytes]] | None) -> Script:
    """Says so much, and then nothing for as long as the client has patience."""

    def script(peer: Peer, api: Api) -> None:
        peer.request()
        if events is not None:
            peer.send(HEADERS, chunks(events(api)))

    return script


def drips(peer: Peer, api: Api) -> None:
    peer.request()
    peer.send(HEADERS, chunks(opening(api)))
    while not peer.is_over.wait(0.02):
        peer.send(chunks(text(api, "la ")))


def resets(peer: Peer, _api: Api) -> None:
    peer.request()
    peer.reset()


def never_reads(peer: Peer, _api: Api) -> None:
    peer.is_over.wait(PATIENCE_S)


def speaks_no_tls(peer: Peer, _api: Api) -> None:
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def refuses_in_words(api: Api) -> list[bytes]:
    if api is Api.ANTHROPIC:
        delta = {"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 5}}
        return [*opening(api), event(api, "message_delta", delta), event(api, "message_stop", {"type": "message_stop"})]
    if api is Api.OPENAI_CHAT:
        delta = {"choices": [{"index": 0, "delta": {"refusal": "I can't."}, "finish_reason": "stop"}]}
        return [event(api, "", delta)]
    part = {"type": "refusal", "refusal": "I can't."}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    done = {"type": "response.completed", "response": {"status": "completed", "output": [item], "model": "m"}}
    return [event(api, "response.completed", done)]


SENDS: dict[E, list[Sends]] = {
    E.AUTH: refusal(401, "Incorrect API key provided.", "invalid_api_key"),
    E.BILLING: refusal(429, "You exceeded your current quota.", "insufficient_quota"),
    E.RATE_LIMIT: refusal(429, "Slow down.", "rate_limit_exceeded"),
    E.UPSTREAM_RATE_LIMIT: refusal(429, "Provider returned error", 429, metadata={"provider_name": "X", "raw": "…"}),
    E.OVERLOADED: refusal(529, "Overloaded", kind="overloaded_error"),
    E.SERVER_ERROR: refusal(500, "Internal server error", kind="server_error"),
    E.CONNECT: [Sends(resets)],
    E.TLS: [Sends(speaks_no_tls, is_tls=True)],
    E.TIMEOUT: refusal(504, "The upstream timed out.", 504),
    E.CONNECT_TIMEOUT: [Sends(never_reads, TimeLimits(0.3, 9, 9, 9), is_tls=True)],
    E.FIRST_TOKEN_TIMEOUT: [Sends(hangs(None), TimeLimits(9, 0.3, 9, 9)), Sends(hangs(opening), TimeLimits(9, 0.3, 9, 9))],
    E.IDLE_TIMEOUT: [Sends(hangs(lambda api: [*opening(api), *text(api, "Hel")]), TimeLimits(9, 9, 0.3, 9))],
    E.CALL_TIMEOUT: [Sends(drips, TimeLimits(9, 9, 9, 0.4))],
    E.MALFORMED_STREAM: [
        Sends(streams(lambda api: [*opening(api), *text(api, "Hello")])),
        Sends(streams(lambda api: [*opening(api), b"data: {half\n\n"])),
    ],
    E.CONTEXT_OVERFLOW: refusal(400, "prompt is too long: 210000 tokens > 200000 maximum", "context_length_exceeded"),
    E.PAYLOAD_TOO_LARGE: refusal(413, "Request exceeds the maximum size", kind="request_too_large"),
    E.OUTPUT_CAP: refusal(400, "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens", 400),
    E.THINKING_SIGNATURE: refusal(400, "messages.1.content.0: Invalid `signature` in `thinking` block", 400),
    E.CALL_ID: refusal(400, "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", "3280"),
    E.MODEL_NOT_FOUND: refusal(404, "The model `none` does not exist.", "model_not_found"),
    E.CONTENT_POLICY: refusal(400, "Blocked.", "content_policy_violation"),
    E.REFUSAL: [Sends(streams(refuses_in_words))],
    E.FORMAT_ERROR: refusal(400, "messages.1: tool_use ids must be unique", kind="invalid_request_error"),
    E.EMPTY: [Sends(streams(lambda api: [*opening(api), *ending(api)]))],
    E.TRUNCATED: [Sends(streams(lambda api: [*opening(api), *ending(api, "length")]))],
    E.UNKNOWN: [Sends(streams(lambda api: [event(api, "error", {"type": "error", "error": {"message": "Hm."}})]))],
}  # fmt: skip
CASES = [
    pytest.param(api, error, sent, id=f"{api}-{error}-{n}")
    for error, ways in SENDS.items()
    for n, sent in enumerate(ways)
    for api in APIS
]


@pytest.mark.parametrize(("api", "error", "sent"), CASES)
def test_what_comes_over_the_wire_gets_its_class(api: Api, error: E, sent: Sends) -> None:
    with serving(lambda peer: sent.script(peer, api)) as server:
        url = server.url.replace("http:", "https:") if sent.is_tls else server.url
        failed = attempt(lambda: ask_once(api, url, limits=sent.limits))

    assert failed.counters.last_error == error
    assert failed.counters.attempts == 1
    assert failed.model_call is not None
    assert failed.model_call.error == error, "every attempt is a row"
    assert [e.payload.get("error") for e in failed.events] == [error]


@pytest.mark.parametrize("api", APIS)
def test_a_port_on_which_nobody_listens_is_a_matter_of_connecting(api: Api) -> None:
    with serving(lambda _: None) as server:
        address = server.url

    assert attempt(lambda: ask_once(api, address)).counters.last_error == E.CONNECT


def attempt(call: Callable[[], Any]) -> Outcome:
    """What the turn keeps of an attempt, whether it raised or came to a reply that is no answer."""
    made = answers.Attempt(turn(), "scripted", "large", False)
    try:
        reply = call()
    except ModelError as error:
        return made.failed(error, 0.1)
    return made.answered(reply, 0.1, {}, lambda _: None)


# --- from the class to the steps

THINKING = Thinking("Hm.", Native("scripted", {"type": "thinking", "signature": "x"}))
LONG = turn(
    asked(),
    message(Role.ASSISTANT, THINKING, Call("c1", "look", "{}"), seq=2),
    message(Role.TOOL, Result("c1", "Well.", CallStatus.SUCCEEDED), seq=3),
)
GIVES_UP, CHANGES = "end ", "fall back"
RETRIES = ["call", "pause", "call", "pause", "call"]
TWICE = ["call", "pause", "call"]
REPAIRED = ["call", "repair", "call"]

# What is done alone, and with another model left in the chain.
COURSES: dict[E, tuple[list[str], list[str]]] = {
    E.AUTH: (["call", "end provider_failed"], ["call", CHANGES]),
    E.BILLING: (["call", "end provider_failed"], ["call", CHANGES]),
    E.RATE_LIMIT: ([*RETRIES, "end rate_limited"], [*RETRIES, CHANGES]),
    E.UPSTREAM_RATE_LIMIT: ([*RETRIES, "end rate_limited"], [*TWICE, CHANGES]),
    E.OVERLOADED: ([*RETRIES, "end provider_failed"], [*TWICE, CHANGES]),
    E.SERVER_ERROR: ([*RETRIES, "end provider_failed"], [*RETRIES, CHANGES]),
    E.CONNECT: ([*RETRIES, "end provider_failed"], [*TWICE, CHANGES]),
    E.TLS: (["call", "end provider_failed"], ["call", CHANGES]),
    E.TIMEOUT: ([*RETRIES, "end provider_failed"], [*TWICE, CHANGES]),
    E.CONNECT_TIMEOUT: ([*RETRIES, "end provider_failed"], [*TWICE, CHANGES]),
    E.FIRST_TOKEN_TIMEOUT: ([*RETRIES, "end provider_failed"], [*TWICE, CHANGES]),
    E.IDLE_TIMEOUT: ([*RETRIES, "end provider_failed"], [*RETRIES, CHANGES]),
    E.CALL_TIMEOUT: ([*RETRIES, "end provider_failed"], ["call", CHANGES]),
    E.MALFORMED_STREAM: ([*RETRIES, "end provider_failed"], [*RETRIES, CHANGES]),
    E.CONTEXT_OVERFLOW: (["call", "compress"], ["call", "compress"]),
    E.PAYLOAD_TOO_LARGE: (["call", "compress"], ["call", "compress"]),
    E.OUTPUT_CAP: ([*REPAIRED, "end provider_failed"], [*REPAIRED, CHANGES]),
    E.THINKING_SIGNATURE: ([*REPAIRED, "end provider_failed"], [*REPAIRED, CHANGES]),
    E.CALL_ID: ([*REPAIRED, "end provider_failed"], [*REPAIRED, CHANGES]),
    E.MODEL_NOT_FOUND: (["call", "end provider_failed"], ["call", CHANGES]),
    E.CONTENT_POLICY: (["call", "end refused"], ["call", CHANGES]),
    E.REFUSAL: (["call", "end refused"], ["call", CHANGES]),
    E.FORMAT_ERROR: (["call", "end provider_failed"], ["call", CHANGES]),
    E.EMPTY: ([*RETRIES, "end empty_response"], [*RETRIES, CHANGES]),
    E.TRUNCATED: ([*RETRIES, "end output_truncated"], [*RETRIES, CHANGES]),
    E.UNKNOWN: ([*RETRIES, "end provider_failed"], [*RETRIES, CHANGES]),
}


def after(t: Turn, outcome: Outcome) -> Turn:
    """The turn once a checkpoint has stored the outcome."""
    return t.after(outcome, News(t.position + 1, t.last_seq + len(outcome.messages), t.inbox_n, False, False, False))


def course(t: Turn, error: ModelError) -> list[str]:
    """What is done step by step while every attempt fails like this, up to what is no matter of the table any more."""
    done: list[str] = []
    while len(done) < 20:
        step = decide(t, Signals())
        match step:
            case CallModel(model=model):
                done.append("call")
                t = after(t, answers.Attempt(t, *model.split(":"), step.is_grace).failed(error, 0.1))
            case Backoff():
                done.append("pause")
                t = t.rested()
            case RepairRequest():
                done.append("repair")
                t = after(t, answers.repaired(t, step))
            case FallBack():
                return [*done, CHANGES]
            case GiveUpWorker():
                return [*done, "wait"]
            case Compress():
                return [*done, "compress"]
            case End(ending=ending):
                return [*done, f"end {ending.exit_reason}"]
            case _:
                raise AssertionError(f"no step of a failed attempt: {step}")
    raise AssertionError(f"it does not end: {done}")


def of(error: E) -> ModelError:
    return ModelError(error, "no", output_limit=4_000 if error is E.OUTPUT_CAP else None)


@pytest.mark.parametrize("error", E)
def test_what_is_done_about_a_class(error: E) -> None:
    alone, in_chain = COURSES[error]
    with_fallback = replace(LONG, agent=replace(LONG.agent, fallbacks=("second:model",)))
    if REMEDIES[error].compresses:
        long = tuple(replace(m, seq=n) for n, m in enumerate([asked(), *[said("word " * 4_000), asked()] * 20], 1))
        with_fallback = replace(with_fallback, messages=long)

    assert course(replace(with_fallback, agent=replace(with_fallback.agent, fallbacks=())), of(error)) == alone
    assert course(with_fallback, of(error)) == in_chain


@pytest.mark.parametrize("error", [e for e in E if REMEDIES[e].compresses])
def test_where_nothing_can_be_compressed_the_next_model_is_asked_or_the_turn_ends(error: E) -> None:
    assert course(turn(), of(error)) == ["call", "end context_overflow"]
    assert course(turn(fallbacks=("second:model",)), of(error)) == ["call", CHANGES]


@pytest.mark.parametrize("error", [e for e in E if REMEDIES[e].retries])
def test_a_long_pause_that_was_asked_for_releases_the_worker_or_is_left_for_the_fallback(error: E) -> None:
    asks_for_long = ModelError(error, "no", retry_after_s=100.0)

    assert course(LONG, asks_for_long) == ["call", "wait"]
    assert course(replace(LONG, agent=replace(LONG.agent, fallbacks=("second:model",))), asks_for_long) == [
        "call",
        CHANGES,
    ]


def test_no_class_of_error_is_without_its_row_its_wire_form_and_its_course() -> None:
    assert set(REMEDIES) == set(SENDS) == set(COURSES) == set(E)
    assert {REMEDIES[e].repair for e in E} == {None, *Repair}
    assert all(len(SENDS[e]) > 0 for e in E)
