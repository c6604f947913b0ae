"""Posts bodies to one address as an SDK would, without its work for each request.

Of a request that an SDK makes, only the body differs from the one before. So it is let make one for each key, to nowhere,
and what it wrote is kept: address, authentication, every header. Pooling, redirects and limits are those of the HTTP
client that the SDK has too, and a refusal is the SDK's own error. Measured: a quarter of a call's CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import httpx2

if TYPE_CHECKING:  # each takes a second to load, and most processes speak to one company alone
    import anthropic
    import openai

Sdk: TypeAlias = "openai.OpenAI | anthropic.Anthropic"

# More keys than a pool has, because some are fetched anew every few minutes.
_MOST_KEYS = 64


class Posting:
    """Use as a function: a body and a key (None: the SDK's own) -> an answer that is not read yet.

    Raises the SDK's error for a status that is one, and the HTTP library's where no answer came.
    """

    def __init__(self, sdk: Sdk, path: str, http: httpx2.Client) -> None:
        if not hasattr(sdk, "_make_status_error_from_response"):
            raise TypeError(f"this version of {type(sdk).__name__}'s SDK makes its errors elsewhere")
        self._sdk = sdk
        self._path = path
        self._http = http
        self._written: dict[str | None, httpx2.Request] = {}

    def __call__(self, body: bytes, key: str | None) -> httpx2.Response:
        like = self._written.get(key) or self._write(key)
        request = httpx2.Request("POST", like.url, headers=like.headers, content=body, extensions=like.extensions)
        response = self._http.send(request, stream=True)
        if not response.is_success:
            response.read()
            raise self._sdk._make_status_error_from_response(response)  # pyright: ignore[reportPrivateUsage]
        return response

    def _write(self, key: str | None) -> httpx2.Request:
        """What the SDK sends with this key, but for the body and its length."""
        sent: list[httpx2.Request] = []

        def keep(request: httpx2.Request) -> httpx2.Response:
            sent.append(request)
            return httpx2.Response(200)

        with httpx2.Client(transport=httpx2.MockTransport(keep), timeout=None, trust_env=False) as nowhere:
            self._sdk.with_options(http_client=nowhere).post(
                self._path, cast_to=httpx2.Response, content=b"{}", options=cast("Any", bearer(key))
            )
        request = sent[0]
        del request.headers["content-length"]
        if len(self._written) >= _MOST_KEYS:
            self._written.clear()
        self._written[key] = request
        return request


def bearer(key: str | None) -> dict[str, Any]:
    """The options of an SDK's request that is made with this key: a client's copy for each key would cost more."""
    return {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}
