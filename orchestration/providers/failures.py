"""What an SDK or the HTTP library raised, as one of our errors. Nothing of theirs leaves the adapters.

Their texts may quote a key, and a logged traceback shows every text of its chain, so keys are masked in the whole
chain, not in our sentence alone.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.providers.connections.bounds import NotFollowed
from orchestration.providers.connections.watch import CallWatch, Limit
from orchestration.providers.error_classes import classify, error_object, said_elsewhere, words
from orchestration.providers.output_limits import output_limit
from orchestration.providers.quota_headers import quota_of
from orchestration.quota import Quota
from persistence.records.text import clean
from persistence.records.usage import Usage

MESSAGE_CHARS = 500
MASK = "[key]"
# No connection stood yet, none ever could, or it led to another server than the provider's.
_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
    NotFollowed,
    httpx2.TooManyRedirects,
)

_TIMEOUTS = {
    Limit.CONNECT: ErrorClass.CONNECT_TIMEOUT,
    Limit.FIRST_TOKEN: ErrorClass.FIRST_TOKEN_TIMEOUT,
    Limit.IDLE: ErrorClass.IDLE_TIMEOUT,
    Limit.CALL: ErrorClass.CALL_TIMEOUT,
}


class Malformed(Exception):
    """What came is no answer; the text says what was wrong with it."""


class Reported(Exception):
    """The provider reported an error in the place of an answer. `detail` is its error object."""

    def __init__(self, body: object) -> None:
        self.detail = error_object(body)
        super().__init__(said(self.detail) or said_elsewhere(self.detail) or "an error without a message")


class Translator:
    """Turns what ended an attempt at one provider into ModelError or CallInterrupted."""

    def __init__(self, provider: str, secrets: Sequence[str]) -> None:
        self._provider = provider
        self._secrets = secrets  # looked at when they are needed: a key may be replaced

    def translate(
        self,
        error: Exception,
        watch: CallWatch,
        *,
        response: httpx2.Response | None = None,
        usage: Usage | None = None,
    ) -> ModelError | CallInterrupted:
        """The error to raise from `error`, whose texts hold no key any more.

        `response` is the answer that had begun, if one had; `usage` is what it had told of its tokens.
        """
        for one in _chain(error):
            one.args = tuple(self._mask(a) if isinstance(a, str) else a for a in one.args)
        if watch.is_stopped:
            return CallInterrupted("the model call was stopped")
        answer = response or _response_of(error)
        status = answer.status_code if answer is not None else None
        found, text, detail = _what_happened(error, watch, is_answering=response is not None)
        said_of_output = output_limit(words(detail, text)) if found is ErrorClass.OUTPUT_CAP else None
        quota = quota_of(answer.headers) if answer is not None else None
        return ModelError(
            found,
            self._sentence(text),
            retry_after_s=_wait_s(found, answer.headers, quota) if answer is not None and response is None else None,
            status=status,
            request_id=self.request_id(answer.headers) if answer is not None else None,
            usage=usage,
            was_sent=watch.passed is not Limit.CONNECT and not any(isinstance(e, _NOT_SENT) for e in _chain(error)),
            quota=quota,
            output_limit=said_of_output,
        )

    def request_id(self, headers: Mapping[str, str]) -> str | None:
        """The provider's name for this request, which is stored: Anthropic's header, then OpenAI's."""
        found = headers.get("request-id") or headers.get("x-request-id")
        return clean(self._mask(found))[:200] if found else None

    def _sentence(self, text: str) -> str:
        whole = f"{self._provider}: {' '.join(clean(self._mask(text)).split())}"
        return whole if len(whole) <= MESSAGE_CHARS else whole[: MESSAGE_CHARS - 1] + "…"

    def _mask(self, text: str) -> str:
        # The longest first: one key may be the beginning of another.
        for secret in sorted((s for s in self._secrets if len(s) > 3), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


def said(detail: Mapping[str, Any]) -> str:
    """What an error object says to a person."""
    message = detail.get("message")
    return message if isinstance(message, str) else ""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that a provider asked for, in seconds: milliseconds before seconds before a date. None for nonsense.

    A date is read against the answer's own `Date` where it has one, because our clock and theirs may differ.
    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after")
    seconds = _number(asked)
    if seconds is not None or asked is None:
        return seconds
    try:
        until = parsedate_to_datetime(asked)
        sent = headers.get("date")
        now = parsedate_to_datetime(sent) if sent else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):  # no date, or one with a time zone and one without
        return None


def _wait_s(found: ErrorClass, headers: httpx2.Headers, quota: Quota | None) -> float | None:
    """What a refusal says of when to come back: Retry-After, else, of a rate limit, when the quota has some room again."""
    asked = retry_after_s(headers)
    if asked is None and quota is not None and found is ErrorClass.RATE_LIMIT:
        return quota.wait_s(1) or None
    return asked


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _what_happened(
    error: Exception, watch: CallWatch, *, is_answering: bool
) -> tuple[ErrorClass, str, Mapping[str, Any]]:
    """The class of what happened, the words for it, and the error object that the provider sent, if it sent one."""
    nothing: Mapping[str, Any] = {}
    refused = _response_of(error)
    if watch.passed is not None and refused is None:
        return _TIMEOUTS[watch.passed], watch.sentence, nothing
    if isinstance(error, Reported):
        return classify(None, error.detail, str(error)), str(error), error.detail
    if isinstance(error, Malformed):
        return ErrorClass.MALFORMED_STREAM, str(error), nothing
    if refused is not None:
        sent = getattr(error, "body", None)
        detail = error_object(sent)
        text = said(detail) or said_elsewhere(sent) or str(error)
        shown = "a page in the place of an error" if text.lstrip().startswith("<") else text
        return classify(refused.status_code, detail, text), f"status {refused.status_code}: {shown}", detail
    if is_answering:
        return ErrorClass.MALFORMED_STREAM, f"the answer broke off: {_innermost(error)}", nothing
    return *_of_transport(error), nothing


def _of_transport(error: Exception) -> tuple[ErrorClass, str]:
    causes = list(_chain(error))
    text = _innermost(error)
    if any(isinstance(one, httpx2.ConnectTimeout | httpx2.PoolTimeout) for one in causes):
        return ErrorClass.CONNECT_TIMEOUT, text
    if any(isinstance(one, httpx2.TimeoutException) for one in causes):
        return ErrorClass.FIRST_TOKEN_TIMEOUT, text
    if any(isinstance(one, ssl.SSLError) and not isinstance(one, ssl.SSLEOFError) for one in causes):
        return ErrorClass.TLS, text
    if any(isinstance(one, httpx2.RequestError) for one in causes):
        return ErrorClass.CONNECT, text
    return ErrorClass.UNKNOWN, text


def _response_of(error: Exception) -> httpx2.Response | None:
    """The answer that the SDK made this error from; both SDKs keep it at the same place."""
    response = getattr(error, "response", None)
    return response if isinstance(response, httpx2.Response) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and everything that a traceback of it would show."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]


def _innermost(error: Exception) -> str:
    """The text nearest to the fault: the SDKs' own says "Connection error." and no more."""
    texts = [str(one) or type(one).__name__ for one in _chain(error)]
    return texts[1] if len(texts) > 1 else texts[0]
