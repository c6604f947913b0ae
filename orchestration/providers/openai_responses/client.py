"""A ModelClient for OpenAI Responses, through the openai SDK; see openai_chat.client for what the SDK is left."""

from __future__ import annotations

from functools import partial
from typing import Any, cast
from urllib.parse import quote

import httpx2
import openai

from orchestration.providers.client import Dialect, http_client
from orchestration.providers.keyring import Keyring
from orchestration.providers.openai_responses.background import ResponsesClient, Shelf
from orchestration.providers.openai_responses.decoding import ResponsesDecoder
from orchestration.providers.openai_responses.encoding import ResponsesEncoder
from orchestration.providers.posting import Posting, bearer
from orchestration.providers.settings import ProviderSettings

NO_KEY = "none"


def connect(settings: ProviderSettings, keys: Keyring) -> ResponsesClient:
    """The client of one provider. The SDK knows a key that never changes; any other is given to it with each request."""
    http = http_client()
    sdk = openai.OpenAI(
        api_key=keys.secrets[0] if keys.is_static and keys.secrets else NO_KEY,
        base_url=settings.base_url,
        max_retries=0,
        timeout=None,
        http_client=http,
    )
    takes_key = settings.sends_cache_key(sdk.base_url.host)
    encoder = ResponsesEncoder(
        settings.name,
        settings.extra_body,
        sends_cache_key=takes_key,
        takes_schema=settings.takes_schema,
        streams=settings.stream,
    )
    dialect = Dialect(
        encode=encoder,
        decoder=partial(ResponsesDecoder, settings.name),
        post=Posting(sdk, "/responses", http),
        sdk_error=openai.OpenAIError,
        call_id_chars=settings.fits_call_ids(sdk.base_url.host),
        streams=settings.stream,
    )
    shelf = Shelf(get=partial(_get, sdk), cancel=partial(_cancel, sdk))
    return ResponsesClient(settings.name, dialect, http, keys, shelf=shelf, is_background=encoder.is_background)


def _get(sdk: openai.OpenAI, response_id: str, key: str | None) -> httpx2.Response:
    answer: object = sdk.get(
        _path(response_id),
        cast_to=httpx2.Response,
        options=cast("Any", bearer(key)),
        stream=True,
        stream_cls=openai.Stream[object],
    )
    return cast("httpx2.Response", answer)


def _cancel(sdk: openai.OpenAI, response_id: str, key: str | None) -> httpx2.Response:
    answer: object = sdk.post(
        f"{_path(response_id)}/cancel",
        cast_to=httpx2.Response,
        options=cast("Any", bearer(key)),
        stream=True,
        stream_cls=openai.Stream[object],
    )
    return cast("httpx2.Response", answer)


def _path(response_id: str) -> str:
    return f"/responses/{quote(response_id, safe='')}"
