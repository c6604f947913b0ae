"""A ModelClient for Anthropic Messages, through the anthropic SDK; see openai_chat.client for what the SDK is left."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import anthropic
import httpx2

from orchestration.providers.anthropic_messages.decoding import AnthropicDecoder
from orchestration.providers.anthropic_messages.encoding import AnthropicEncoder
from orchestration.providers.client import Dialect, ProviderClient, bearer, http_client
from orchestration.providers.keyring import Keyring
from orchestration.providers.settings import ProviderSettings

NO_KEY = "none"


def connect(settings: ProviderSettings, keys: Keyring) -> ProviderClient:
    """The client of one provider. The SDK knows a key that never changes; any other is given to it with each request."""
    http = http_client()
    sdk = anthropic.Anthropic(
        api_key=keys.secrets[0] if keys.is_static and keys.secrets else NO_KEY,
        base_url=_base_url(settings.base_url),
        max_retries=0,
        timeout=None,
        http_client=http,
        open_telemetry=False,
    )
    # Whole: the SDK would join a path to its base anew for each request.
    address = f"{str(sdk.base_url).rstrip('/')}/v1/messages"
    dialect = Dialect(
        encode=AnthropicEncoder(
            settings.name,
            settings.extra_body,
            marks_cache=settings.prompt_cache is not False,
            takes_schema=settings.takes_schema,
        ),
        decoder=partial(AnthropicDecoder, settings.name),
        post=partial(_post, sdk, address),
        sdk_error=anthropic.AnthropicError,
        call_id_chars=settings.fits_call_ids(sdk.base_url.host),
    )
    return ProviderClient(settings.name, dialect, http, keys)


def _base_url(configured: str | None) -> str | None:
    """This SDK adds `/v1` itself; an address that ends in it, as other protocols want it, means the same server."""
    return configured.rstrip("/").removesuffix("/v1") if configured else None


def _post(sdk: anthropic.Anthropic, address: str, body: bytes, key: str | None) -> httpx2.Response:
    answer: object = sdk.post(
        address,
        cast_to=httpx2.Response,
        content=body,
        options=cast("Any", bearer(key)),
        stream=True,
        stream_cls=anthropic.Stream[object],
    )
    return cast("httpx2.Response", answer)
