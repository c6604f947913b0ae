"""What an answer may do before anybody reads it: how far it may lead, and how long it may get once it is unpacked.

For the response hook of the HTTP client, so that whatever reads the body, the SDKs too, reads no more than this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import httpx2

from orchestration.providers.connections.watch import MAX_ANSWER_BYTES, watching

# An answer in one piece is held in memory, and several times over while it is taken apart.
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
# The status has said what matters: of the words with it, so many are read, for so long.
MAX_ERROR_BYTES = 1024 * 1024
ERROR_S = 5.0

MAX_REDIRECTS = 3
_KEEPS_ITS_METHOD = (307, 308)


class NotFollowed(httpx2.RequestError):
    """A redirect that leads away from the provider as it is configured, or that would lose the request on its way."""


def bound(response: httpx2.Response) -> None:
    """Refuse to be led elsewhere, and bound the body. Raises NotFollowed; reading may raise DecodingError."""
    if response.has_redirect_location:
        _check_redirect(response)
    unpacked = response.iter_bytes
    if response.is_success:
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        limit = MAX_ANSWER_BYTES if is_stream else MAX_DOCUMENT_BYTES
        response.iter_bytes = partial(_whole, unpacked, limit)
    else:
        if response.is_error:
            watching().settle(ERROR_S)
        response.iter_bytes = partial(_beginning, unpacked, response.close, MAX_ERROR_BYTES)


def _check_redirect(response: httpx2.Response) -> None:
    """Neither a key nor a prompt goes to a server that nobody configured, and a request that becomes a GET is lost."""
    asked = response.request.url
    try:
        target = asked.join(response.headers["location"])
    except httpx2.InvalidURL as error:
        raise NotFollowed("it redirects to an address that is none", request=response.request) from error
    is_upgrade = (asked.scheme, target.scheme, asked.host) == ("http", "https", target.host)
    if (target.origin == asked.origin or is_upgrade) and response.status_code in _KEEPS_ITS_METHOD:
        return
    place = f"{target.scheme}://{target.netloc.decode('ascii', 'replace')}"
    raise NotFollowed(
        f"status {response.status_code}: it redirects to {place}, which is not followed: set base_url to where it is",
        request=response.request,
    )


def _whole(
    unpacked: Callable[[int | None], Iterator[bytes]], limit: int, chunk_size: int | None = None
) -> Iterator[bytes]:
    size = 0
    for piece in unpacked(chunk_size):
        size += len(piece)
        if size > limit:
            raise httpx2.DecodingError(f"the answer is longer than {limit} bytes")
        yield piece


def _beginning(
    unpacked: Callable[[int | None], Iterator[bytes]],
    close: Callable[[], None],
    limit: int,
    chunk_size: int | None = None,
) -> Iterator[bytes]:
    """At most `limit` bytes. A body that breaks off or hangs is one that is short."""
    left = limit
    try:
        for piece in unpacked(chunk_size):
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                break
    except httpx2.HTTPError:
        return
    finally:
        close()
