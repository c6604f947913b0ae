"""What a provider's error means: HTTP status, structured code, wording -> ErrorClass (pure).

A status says most; where the provider names a code, the code knows better (a 429 that is really an empty account);
wording is read last, and only where status and code leave the matter open or are known to say too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from orchestration.errors import ErrorClass
from orchestration.providers.error_codes import BROAD_CODES, CODES, class_of_status
from orchestration.providers.output_limits import is_output_cap

# Whoever has something to say says it at the beginning; a page of a megabyte is not searched.
_MOST_CHARS = 4_000

_OPEN = frozenset({ErrorClass.FORMAT_ERROR, ErrorClass.UNKNOWN})
_CLIENT = _OPEN | {ErrorClass.CONTEXT_OVERFLOW, ErrorClass.PAYLOAD_TOO_LARGE}


@dataclass(frozen=True, slots=True)
class _Wording:
    """What `says` means, in the place of which classes it may stand."""

    means: ErrorClass
    instead_of: frozenset[ErrorClass]
    says: re.Pattern[str]


def _wording(means: ErrorClass, instead_of: frozenset[ErrorClass], *says: str) -> _Wording:
    return _Wording(means, instead_of, re.compile("|".join(says)))


# In the order in which they count. The quotes around a word are whatever a gateway has made of them.
_Q = r"[`'\"\\]*"
_WORDINGS: tuple[_Wording, ...] = (
    # One request that is above the limit of a whole minute never passes, however long it waits.
    _wording(
        ErrorClass.PAYLOAD_TOO_LARGE,
        frozenset({ErrorClass.RATE_LIMIT, ErrorClass.PAYLOAD_TOO_LARGE}),
        r"request too large for",
        r"input or output tokens must be reduced",
    ),
    # A model that cannot see will not learn it.
    _wording(
        ErrorClass.FORMAT_ERROR,
        _OPEN | {ErrorClass.SERVER_ERROR, ErrorClass.MODEL_NOT_FOUND},
        r"(image|picture|vision|multimodal)\b.{0,40}\b(not supported|unsupported|not enabled|not available)",
        r"(not support|no endpoints found that support|cannot (read|process)) (the )?(image|picture|vision|multimodal)",
    ),
    _wording(
        ErrorClass.THINKING_SIGNATURE,
        _OPEN | {ErrorClass.MODEL_NOT_FOUND},
        rf"invalid {_Q}signature{_Q} in {_Q}(redacted_)?thinking",
        r"thinking.{0,60}(cannot be modified|must remain as they were|are bound to)",
        r"encrypted content.{0,120}could not be (verified|decrypted)",
        rf"of type {_Q}reasoning{_Q} was provided without its required",
        rf"without its required {_Q}reasoning{_Q} item",
        r"items are not persisted when .?store.? is set to false",
        r"(invalid|corrupted) thought.?signature",
        # Servers that tell their reasoning, and refuse to be told of it: not a setting, such as `reasoning.effort`.
        r"(unknown|unsupported|unexpected|unrecognized|extra)\b.{0,60}\breasoning_content\b",
        r"\breasoning_content\b.{0,60}\b(unknown|unsupported|unexpected|unrecognized|extra|should not)\b",
        r"\breasoning_content\b.{0,60}\bnot (supported|permitted|allowed)\b",
        rf"messages\b.{{0,60}}\breasoning{_Q} is unsupported",
    ),
    # Mistral's own words, and those of the chat templates of its models.
    _wording(
        ErrorClass.CALL_ID,
        _OPEN | {ErrorClass.SERVER_ERROR, ErrorClass.MODEL_NOT_FOUND},
        r"tool call ids?\b.{0,200}\blength (of )?9\b",
    ),
    _wording(
        ErrorClass.CONTEXT_OVERFLOW,
        _OPEN | {ErrorClass.SERVER_ERROR, ErrorClass.PAYLOAD_TOO_LARGE},
        r"context (length|window|size)",
        r"maximum (context|prompt|model) length",
        r"prompt is too long",
        r"input is too long",
        r"exceed context limit",
        r"exceeds? the (model's )?maximum (number of )?(input )?tokens",
        r"(input|prompt) tokens? .{0,60}exceeds?",
        r"too many (input|prompt) tokens",
        r"input token count .{0,40}exceeds",
    ),
    _wording(
        ErrorClass.UPSTREAM_RATE_LIMIT,
        _OPEN | {ErrorClass.RATE_LIMIT},
        r"rate.?limited upstream",
        r"upstream.{0,40}(rate.?limit|too many requests)",
        r"error from provider.{0,60}(rate.?limit|too many requests)",
        r"litellm\.ratelimiterror",
        r"no (healthy )?deployments? available",
    ),
    _wording(
        ErrorClass.BILLING,
        _OPEN | {ErrorClass.AUTH, ErrorClass.RATE_LIMIT},
        r"credit balance",
        r"insufficient (account )?(credit|balance|funds|quota)",
        r"more credits",
        r"billing details",
        r"spend(ing)? limit",
        r"key limit exceeded",
        r"budget has been exceeded",
    ),
    _wording(
        ErrorClass.RATE_LIMIT,
        _OPEN | {ErrorClass.BILLING},
        r"(rate|request|token)s?[ -]limit(s|ed)?\b.{0,40}(reached|exceeded|hit)",
        r"rate.?limit",
        r"too many requests",
        r"too many tokens, please wait",
        r"throttlingexception",
        r"usage limit.*try again",
    ),
    _wording(
        ErrorClass.OVERLOADED,
        _OPEN | {ErrorClass.RATE_LIMIT, ErrorClass.SERVER_ERROR},
        r"overloaded",
        r"(at|over) capacity",
        r"server busy",
        r"no capacity",
    ),
    _wording(
        ErrorClass.CONTENT_POLICY,
        _OPEN | {ErrorClass.AUTH},
        r"content (policy|management policy|filter)",
        r"usage polic",
        r"safety system",
        r"blocked by .*safety",
        r"requires moderation",
        r"guardrail.{0,40}(intervened|blocked)",
    ),
    _wording(
        ErrorClass.AUTH,
        _OPEN,
        r"api.key (is )?(not valid|invalid|expired|missing)",
        r"(invalid|incorrect|missing|no|expired) (api|authentication|subscription).?(key|token)",
        r"(unrecognizedclient|accessdenied|expiredtoken)exception",
        r"security token included in the request is (invalid|expired)",
    ),
    _wording(
        ErrorClass.MODEL_NOT_FOUND,
        _OPEN,
        r"(model|deployment)\b.{0,120}(not found|does not exist|not exist)",
        r"unknown model",
        r"no such model",
        r"not a valid model",
        r"invalid model name",
        r"model identifier is invalid",
        r"no endpoints found",
    ),
)


# Where an error may be told, and how deep in its body.
_SAYING = ("message", "error", "errors", "detail", "msg", "title", "description", "error_message")
_DEEPEST = 4


def classify(status: int | None, detail: Mapping[str, Any], text: str) -> ErrorClass:
    """The class of an error that a provider reported.

    `status` is None where none was sent for the error itself (inside a stream that began with 200), `detail` is the
    provider's error object (empty if it sent none), `text` what it said.
    """
    codes = [code.lower() for code in _codes(detail)]
    said = words(detail, text)
    status = status if status is not None else _status_in(codes)
    found = next((CODES[code] for code in codes if code in CODES), None)
    is_named = found is not None
    if found is None:
        found = class_of_status(status) if status is not None else _of_broad_code(codes)
    if found is ErrorClass.RATE_LIMIT and _provider_behind(detail):
        return ErrorClass.UPSTREAM_RATE_LIMIT
    if found in _CLIENT and is_output_cap(said):
        return ErrorClass.OUTPUT_CAP
    for wording in _WORDINGS:
        # A code that names the cause is not argued with, but by the first: it says what the code leaves out.
        if found in wording.instead_of and (not is_named or wording in _WORDINGS[:1]) and wording.says.search(said):
            return wording.means
    return found


def error_object(body: object) -> Mapping[str, Any]:
    """The error object in what a provider sent: `{"error": {…}}`, `{"error": "…"}`, a list of one, or the object itself."""
    if isinstance(body, list) and len(cast("list[object]", body)) == 1:
        return error_object(cast("list[object]", body)[0])
    if isinstance(body, str):
        return {"message": body}
    if not isinstance(body, dict):
        return {}
    outer = cast("dict[str, Any]", body)
    match outer.get("error"):
        case dict() as found:
            inner = cast("dict[str, Any]", found)
            is_wrapped = inner.keys() == {"error"}  # by one gateway behind another
            return error_object(inner) if is_wrapped else inner
        case str() as message:
            return {**outer, "message": message}
        case _:
            return outer


def said_elsewhere(body: object) -> str:
    """What an error without a `message` says in the fields where other servers say it (FastAPI, RFC 9457).

    In those alone: such an error may also quote the request.
    """
    return "; ".join(_sayings(body, depth=0))


def _sayings(body: object, *, depth: int) -> Iterator[str]:
    if isinstance(body, list):
        inside = cast("list[object]", body)
    elif isinstance(body, dict):
        inside = [body[name] for name in _SAYING if name in body]
    else:
        return
    for one in inside:
        if isinstance(one, str):
            yield one
        elif depth < _DEEPEST:
            yield from _sayings(one, depth=depth + 1)


def words(detail: Mapping[str, Any], text: str) -> str:
    """All that was said, in lower case: a gateway may keep the words of whoever stands behind it apart."""
    raw = _inside(detail, "metadata").get("raw")
    said = (text, raw) if isinstance(raw, str) else (text,)
    return "\n".join(one[:_MOST_CHARS] for one in said).lower()


def _codes(detail: Mapping[str, Any]) -> list[str]:
    """Everything in an error object that may name its cause, the most telling first."""
    named: list[object] = [
        _inside(detail, "details").get("error_code"),
        _inside(detail, "innererror").get("code"),
        detail.get("code"),
        detail.get("type"),
        detail.get("status"),
        str(detail.get("__type", "")).rpartition("#")[2],
    ]
    return [str(code) for code in named if isinstance(code, str | int) and not isinstance(code, bool)]


def _provider_behind(detail: Mapping[str, Any]) -> bool:
    """Whether a gateway says that its error is that of a provider behind it: OpenRouter names it then."""
    return bool(_inside(detail, "metadata").get("provider_name"))


def _inside(detail: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: object = detail.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _status_in(codes: list[str]) -> int | None:
    """An HTTP status given as a code: OpenRouter and vLLM do so, also inside a stream."""
    return next((int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)), None)


def _of_broad_code(codes: list[str]) -> ErrorClass:
    return next((BROAD_CODES[code] for code in codes if code in BROAD_CODES), ErrorClass.UNKNOWN)
