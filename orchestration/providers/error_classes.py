"""What a provider's error means: HTTP status, structured code, wording -> ErrorClass (pure).

A status says most; where the provider names a code, the code knows better (a 429 that is really an empty account);
wording is read last, and only where status and code leave the matter open. The codes are those of the providers' SDK
types and of the servers that imitate them (vLLM, llama.cpp, OpenRouter, Azure).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from orchestration.errors import ErrorClass

# Codes that say more than the status they come with.
_CODES: dict[str, ErrorClass] = {
    "billing_error": ErrorClass.BILLING,
    "billing_hard_limit_reached": ErrorClass.BILLING,
    "billing_not_active": ErrorClass.BILLING,
    "contract_spend_limit_reached": ErrorClass.BILLING,
    "enforced_spend_limit_reached": ErrorClass.BILLING,
    "insufficient_balance": ErrorClass.BILLING,
    "insufficient_quota": ErrorClass.BILLING,
    "linked_organization_spend_limit_reached": ErrorClass.BILLING,
    "content_filter": ErrorClass.CONTENT_POLICY,
    "content_policy_violation": ErrorClass.CONTENT_POLICY,
    "invalid_prompt": ErrorClass.CONTENT_POLICY,
    "moderation_blocked": ErrorClass.CONTENT_POLICY,
    "responsibleaipolicyviolation": ErrorClass.CONTENT_POLICY,
    "context_length_exceeded": ErrorClass.CONTEXT_OVERFLOW,
    "exceed_context_size_error": ErrorClass.CONTEXT_OVERFLOW,
    "model_context_window_exceeded": ErrorClass.CONTEXT_OVERFLOW,
    "string_above_max_length": ErrorClass.PAYLOAD_TOO_LARGE,
    "request_too_large": ErrorClass.PAYLOAD_TOO_LARGE,
    "invalid_api_key": ErrorClass.AUTH,
    "authentication_error": ErrorClass.AUTH,
    "permission_error": ErrorClass.AUTH,
    "model_not_found": ErrorClass.MODEL_NOT_FOUND,
    "deploymentnotfound": ErrorClass.MODEL_NOT_FOUND,
    "rate_limit_error": ErrorClass.RATE_LIMIT,
    "rate_limit_exceeded": ErrorClass.RATE_LIMIT,
    "engine_overloaded": ErrorClass.OVERLOADED,
    "overloaded": ErrorClass.OVERLOADED,
    "overloaded_error": ErrorClass.OVERLOADED,
    "server_overloaded": ErrorClass.OVERLOADED,
    "slow_down": ErrorClass.OVERLOADED,
    "timeout_error": ErrorClass.TIMEOUT,
}

# Codes that many causes share: they count only where no status is known, as inside a stream.
_BROAD_CODES: dict[str, ErrorClass] = {
    "api_error": ErrorClass.SERVER_ERROR,
    "internal_error": ErrorClass.SERVER_ERROR,
    "internal_server_error": ErrorClass.SERVER_ERROR,
    "server_error": ErrorClass.SERVER_ERROR,
    "invalid_request_error": ErrorClass.FORMAT_ERROR,
    "not_found_error": ErrorClass.MODEL_NOT_FOUND,
    "requests": ErrorClass.RATE_LIMIT,
    "tokens": ErrorClass.RATE_LIMIT,
}

_STATUSES: dict[int, ErrorClass] = {
    401: ErrorClass.AUTH,
    402: ErrorClass.BILLING,
    403: ErrorClass.AUTH,
    404: ErrorClass.MODEL_NOT_FOUND,
    408: ErrorClass.TIMEOUT,
    409: ErrorClass.SERVER_ERROR,
    413: ErrorClass.PAYLOAD_TOO_LARGE,
    425: ErrorClass.SERVER_ERROR,
    429: ErrorClass.RATE_LIMIT,
    503: ErrorClass.OVERLOADED,
    504: ErrorClass.TIMEOUT,
    524: ErrorClass.TIMEOUT,
    529: ErrorClass.OVERLOADED,
}

_OPEN = frozenset({ErrorClass.FORMAT_ERROR, ErrorClass.UNKNOWN})

# Class that the wording means, the classes in whose place it may stand, and the wording.
_WORDINGS: tuple[tuple[ErrorClass, frozenset[ErrorClass], re.Pattern[str]], ...] = (
    (
        ErrorClass.CONTEXT_OVERFLOW,
        _OPEN | {ErrorClass.SERVER_ERROR, ErrorClass.PAYLOAD_TOO_LARGE},
        re.compile(
            r"context (length|window|size)|maximum (context|prompt) length|prompt is too long|input is too long"
            r"|exceed context limit|exceeds? the (model's )?maximum (number of )?(input )?tokens"
        ),
    ),
    (
        ErrorClass.BILLING,
        _OPEN | {ErrorClass.AUTH, ErrorClass.RATE_LIMIT},
        re.compile(
            r"credit balance|insufficient (credit|balance|funds|quota)|more credits|billing details|spend limit"
            r"|key limit exceeded"
        ),
    ),
    (
        ErrorClass.RATE_LIMIT,
        _OPEN | {ErrorClass.BILLING},
        re.compile(r"rate limit|too many requests|usage limit.*try again"),
    ),
    (
        ErrorClass.OVERLOADED,
        _OPEN | {ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR},
        re.compile(r"overloaded|at capacity|over capacity"),
    ),
    (
        ErrorClass.CONTENT_POLICY,
        _OPEN | {ErrorClass.AUTH},
        re.compile(r"content (policy|management policy|filter)|usage polic|safety system|blocked by .*safety"),
    ),
    (
        ErrorClass.MODEL_NOT_FOUND,
        _OPEN,
        re.compile(r"(model|deployment)\b.{0,120}(not found|does not exist|not exist)|unknown model|no such model"),
    ),
)


def classify(status: int | None, detail: Mapping[str, Any], text: str) -> ErrorClass:
    """The class of an error that a provider reported.

    `status` is None where none was sent for the error itself (inside a stream that began with 200), `detail` is the
    provider's error object (empty if it sent none), `text` what it said.
    """
    codes = [code.lower() for code in _codes(detail)]
    for code in codes:
        if code in _CODES:
            return _CODES[code]
    status = status if status is not None else _status_in(codes)
    found = _of_status(status) if status is not None else _of_broad_code(codes)
    said = text.lower()
    for meant, may_replace, wording in _WORDINGS:
        if found in may_replace and wording.search(said):
            return meant
    return found


def error_object(body: object) -> Mapping[str, Any]:
    """The error object in what a provider sent: `{"error": {…}}`, `{"error": "…"}`, or the object itself."""
    if isinstance(body, str):
        return {"message": body}
    if not isinstance(body, dict):
        return {}
    outer = cast("dict[str, Any]", body)
    match outer.get("error"):
        case dict() as inner:
            return cast("dict[str, Any]", inner)
        case str() as message:
            return {**outer, "message": message}
        case _:
            return outer


def _codes(detail: Mapping[str, Any]) -> list[str]:
    """Everything in an error object that may name its cause, the most telling first."""
    details: object = detail.get("details")
    inner = cast("dict[str, Any]", details) if isinstance(details, dict) else {}
    named: list[object] = [inner.get("error_code"), detail.get("code"), detail.get("type")]
    return [str(code) for code in named if isinstance(code, str | int)]


def _status_in(codes: list[str]) -> int | None:
    """An HTTP status given as a code: OpenRouter and vLLM do so, also inside a stream."""
    return next((int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)), None)


def _of_status(status: int) -> ErrorClass:
    if status in _STATUSES:
        return _STATUSES[status]
    if status >= 500:
        return ErrorClass.SERVER_ERROR
    return ErrorClass.FORMAT_ERROR if status >= 400 else ErrorClass.UNKNOWN


def _of_broad_code(codes: list[str]) -> ErrorClass:
    return next((_BROAD_CODES[code] for code in codes if code in _BROAD_CODES), ErrorClass.UNKNOWN)
