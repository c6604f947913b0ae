"""The request that an SDK has made, made again with another body.

All requests of one client have the same address and the same headers, and an SDK works them out anew every time, which is
half of the CPU of a model call (measured with 200 turns in flight: 6.3 ms of CPU an iteration through the SDK, 5.0 ms
without it). So the SDK makes the first one, and what it sent is the form of those that follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2


class Refused(Exception):
    """An error status in the place of an answer. `body` is its JSON value, or its text, as the SDKs have it."""

    def __init__(self, response: httpx2.Response) -> None:
        text = response.text.strip()
        self.response = response
        self.body: Any = text
        try:
            self.body = json.loads(text)
        except ValueError:
            super().__init__(text or f"Error code: {response.status_code}")
        else:
            super().__init__(f"Error code: {response.status_code} - {self.body}")


@dataclass(frozen=True, slots=True)
class _Form:
    url: httpx2.URL
    headers: httpx2.Headers


class Repeater:
    """Posts bodies; `by_sdk` posts the first one. Thread-safe. The answers are not read yet."""

    def __init__(self, http: httpx2.Client, by_sdk: Callable[[bytes], httpx2.Response]) -> None:
        self._http = http
        self._by_sdk = by_sdk
        self._form: _Form | None = None

    def __call__(self, body: bytes) -> httpx2.Response:
        """Raises what the SDK raises or Refused, and httpx2.HTTPError."""
        form = self._form
        if form is None:
            response = self._by_sdk(body)
            self._form = _form_of(response)
            return response
        response = self._http.send(httpx2.Request("POST", form.url, headers=form.headers, content=body), stream=True)
        if response.is_success:
            return response
        try:
            response.read()
        finally:
            response.close()
        raise Refused(response)


def _form_of(response: httpx2.Response) -> _Form | None:
    """The form of the request that had this answer; none where it was sent on to another address."""
    if response.history:
        return None
    sent = response.request
    headers = sent.headers.copy()
    del headers["content-length"]
    return _Form(sent.url, headers)
