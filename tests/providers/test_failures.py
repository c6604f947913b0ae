"""What a provider refuses becomes one class of error, one sentence without a key, and the wait that it asked for."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from orchestration.errors import ErrorClass, ModelError
from orchestration.providers.error_classes import classify, error_object
from orchestration.providers.failures import MESSAGE_CHARS, retry_after_s
from orchestration.providers.settings import Api
from tests.providers.bench import APIS, KEY, ask_once
from tests.providers.faults import Peer, serving

both = pytest.mark.parametrize("api", APIS)


def refused(api: Api, status: int, body: Any, *, kind: str = "application/json", **headers: str) -> ModelError:
    """What an attempt raises when the server answers with this."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(status, body.encode() if isinstance(body, str) else json.dumps(body).encode(), kind, **headers)

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)
    assert len(server.peers) == 1, "an attempt is one request: the SDKs must not retry"
    return caught.value


def openai_error(message: str = "No.", kind: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic_error(message: str = "No.", kind: str = "invalid_request_error", **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"}


TABLE: list[tuple[int | None, Any, ErrorClass]] = [
    (401, openai_error("Incorrect API key provided", "invalid_request_error", "invalid_api_key"), ErrorClass.AUTH),
    (401, anthropic_error("invalid x-api-key", "authentication_error"), ErrorClass.AUTH),
    (403, anthropic_error("No access.", "permission_error"), ErrorClass.AUTH),
    (403, openai_error("Key limit exceeded (total limit)."), ErrorClass.BILLING),
    (402, openai_error("Insufficient credits."), ErrorClass.BILLING),
    (402, openai_error("Usage limit reached, try again in 5 minutes."), ErrorClass.RATE_LIMIT),
    (400, anthropic_error("Your credit balance is too low to access the Anthropic API."), ErrorClass.BILLING),
    (
        429,
        openai_error("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
        ErrorClass.BILLING,
    ),
    (
        429,
        anthropic_error("No.", "rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}),
        ErrorClass.BILLING,
    ),
    (429, openai_error("Slow down.", "requests", "rate_limit_exceeded"), ErrorClass.RATE_LIMIT),
    (429, openai_error("The model is overloaded with other requests."), ErrorClass.OVERLOADED),
    (429, "", ErrorClass.RATE_LIMIT),
    (503, openai_error("Busy."), ErrorClass.OVERLOADED),
    (529, anthropic_error("Overloaded", "overloaded_error"), ErrorClass.OVERLOADED),
    (500, openai_error("The server had an error.", "server_error"), ErrorClass.SERVER_ERROR),
    (500, anthropic_error("Internal server error", "api_error"), ErrorClass.SERVER_ERROR),
    (500, "<html>nginx</html>", ErrorClass.SERVER_ERROR),
    (502, "<html>Bad Gateway</html>", ErrorClass.SERVER_ERROR),
    (504, "<html>Gateway Time-out</html>", ErrorClass.TIMEOUT),
    (408, openai_error("Timed out."), ErrorClass.TIMEOUT),
    (409, openai_error("Locked."), ErrorClass.SERVER_ERROR),
    (413, anthropic_error("Too large.", "request_too_large"), ErrorClass.PAYLOAD_TOO_LARGE),
    (413, openai_error("This exceeds the model's context window."), ErrorClass.CONTEXT_OVERFLOW),
    (400, openai_error("No.", "invalid_request_error", "context_length_exceeded"), ErrorClass.CONTEXT_OVERFLOW),
    (400, anthropic_error("prompt is too long: 210000 tokens > 200000 maximum"), ErrorClass.CONTEXT_OVERFLOW),
    (
        400,
        anthropic_error("input length and `max_tokens` exceed context limit: 1 + 2 > 2"),
        ErrorClass.CONTEXT_OVERFLOW,
    ),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
            }
        },
        ErrorClass.CONTEXT_OVERFLOW,
    ),
    (500, openai_error("This model's maximum context length is 4096 tokens."), ErrorClass.CONTEXT_OVERFLOW),
    (
        404,
        openai_error("The model `x` does not exist", "invalid_request_error", "model_not_found"),
        ErrorClass.MODEL_NOT_FOUND,
    ),
    (404, anthropic_error("model: x", "not_found_error"), ErrorClass.MODEL_NOT_FOUND),
    (404, "404 page not found", ErrorClass.MODEL_NOT_FOUND),
    (400, openai_error("Model 'x' not found."), ErrorClass.MODEL_NOT_FOUND),
    (400, openai_error("Filtered.", None, "content_filter"), ErrorClass.CONTENT_POLICY),
    (400, openai_error("Blocked by our content management policy."), ErrorClass.CONTENT_POLICY),
    (403, openai_error("This violates our usage policies."), ErrorClass.CONTENT_POLICY),
    (400, anthropic_error("messages.1: tool_use ids must be unique"), ErrorClass.FORMAT_ERROR),
    (422, openai_error("Unprocessable."), ErrorClass.FORMAT_ERROR),
    (418, "a teapot", ErrorClass.FORMAT_ERROR),
    (400, {"object": "error", "message": "Bad.", "type": "BadRequestError", "code": 400}, ErrorClass.FORMAT_ERROR),
    (400, {"error": "a plain sentence"}, ErrorClass.FORMAT_ERROR),
    (None, openai_error("Provider returned error", None, 429), ErrorClass.RATE_LIMIT),
    (None, openai_error("Provider returned error", None, "502"), ErrorClass.SERVER_ERROR),
    (None, anthropic_error("Overloaded", "overloaded_error"), ErrorClass.OVERLOADED),
    (None, {"error": "rate limit reached"}, ErrorClass.RATE_LIMIT),
    (None, [], ErrorClass.UNKNOWN),
    (498, openai_error("No."), ErrorClass.OVERLOADED),
]

# What stands nowhere where the protocols have it, and is read all the same.
_OVERFLOW = "prompt is too long: 210000 tokens > 200000 maximum"
ELSEWHERE = [
    {"error": {"error": {"error": {"message": _OVERFLOW}}}},
    {"detail": _OVERFLOW},
    {"detail": [{"loc": ["body"], "msg": _OVERFLOW, "input": "rate limit exceeded"}]},
    {"errors": [{"title": "Bad", "detail": _OVERFLOW}]},
    [{"error": {"message": _OVERFLOW}}, {"error": {"message": "also this"}}],
]


@both
@pytest.mark.parametrize("body", ELSEWHERE, ids=lambda body: json.dumps(body)[:40])
def test_an_error_is_read_wherever_it_is_told(api: Api, body: Any) -> None:
    error = refused(api, 400, body)

    assert error.error is ErrorClass.CONTEXT_OVERFLOW


@both
def test_an_error_that_quotes_the_request_is_not_read_there(api: Api) -> None:
    quoted = {"detail": [{"msg": "Field required", "input": {"messages": "the context length is exceeded"}}]}

    error = refused(api, 400, quoted)

    assert error.error is ErrorClass.FORMAT_ERROR
    assert "context length" not in str(error)


@pytest.mark.parametrize(("status", "body", "meant"), TABLE, ids=[f"{s} {json.dumps(b)[:60]}" for s, b, _ in TABLE])
def test_the_class_of_an_error(status: int | None, body: Any, meant: ErrorClass) -> None:
    detail = error_object(body)
    said = detail.get("message", body if isinstance(body, str) else "")

    assert classify(status, detail, said) is meant


@both
@pytest.mark.parametrize("row", [0, 1, 6, 7, 9, 11, 13, 14, 17, 18, 21, 24, 28, 30, 35, 39])
def test_the_class_survives_the_sdk(api: Api, row: int) -> None:
    status, body, meant = TABLE[row]
    assert status is not None

    error = refused(api, status, body)

    assert (error.error, error.status) == (meant, status)


@both
def test_the_sentence_names_the_provider_the_status_and_what_was_said(api: Api) -> None:
    error = refused(
        api, 400, openai_error("Something\n\n  is wrong\x00 here."), request_id="req_7", x_request_id="req_7"
    )

    assert str(error) == "main: status 400: Something is wrong� here."
    assert error.request_id == "req_7"


@both
def test_a_page_is_not_quoted(api: Api) -> None:
    error = refused(api, 502, "<html><h1>Bad Gateway</h1></html>", kind="text/html")

    assert str(error) == "main: status 502: a page in the place of an error"


@both
def test_a_long_sentence_is_cut(api: Api) -> None:
    error = refused(api, 400, openai_error("x" * 10_000))

    assert len(str(error)) == MESSAGE_CHARS


@both
def test_a_key_is_shown_neither_in_the_sentence_nor_in_a_traceback(api: Api) -> None:
    body = openai_error(
        f"Incorrect API key provided: {KEY}. And {KEY!r} again.", "invalid_request_error", "invalid_api_key"
    )

    error = refused(api, 401, body)

    assert error.error is ErrorClass.AUTH
    assert KEY not in str(error)
    assert "[key]" in str(error)
    assert KEY not in "".join(traceback.format_exception(error))


@both
def test_a_key_in_a_stream_error_is_masked_too(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(
            200,
            b"event: error\ndata: " + json.dumps(openai_error(f"bad key {KEY}")).encode() + b"\n\n",
            "text/event-stream",
        )

    with serving(script) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    assert "bad key [key]" in str(caught.value)
    assert KEY not in "".join(traceback.format_exception(caught.value))


DATE = "Mon, 30 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "4294967"}, 4294967.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:30 GMT", "date": DATE}, 90.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": DATE}, 0.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:30 -0000", "date": DATE}, None),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:30 GMT", "date": "yesterday"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_provider_asks_for(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers) == wait_s


def test_a_date_without_the_servers_own_is_read_by_our_clock() -> None:
    assert retry_after_s({"retry-after": "Mon, 30 Nov 1998 12:00:00 GMT"}) == 0.0


@both
def test_the_wait_comes_with_the_error(api: Api) -> None:
    assert refused(api, 429, openai_error(), retry_after="7").retry_after_s == 7.0
    assert refused(api, 429, openai_error(), retry_after_ms="1500", retry_after="7").retry_after_s == 1.5
    assert refused(api, 503, "", date=DATE, retry_after="Mon, 30 Nov 2026 12:00:20 GMT").retry_after_s == 20.0
    assert refused(api, 429, openai_error(), retry_after="soon").retry_after_s is None
