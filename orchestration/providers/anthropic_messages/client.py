"""A ModelClient for Anthropic Messages, through the anthropic SDK; see openai_chat.client for what the SDK is left."""

from __future__ import annotations

from functools import partial

import anthropic

from orchestration.providers.anthropic_messages.decoding import AnthropicDecoder
from orchestration.providers.anthropic_messages.encoding import AnthropicEncoder
from orchestration.providers.client import Dialect, ProviderClient, http_client
from orchestration.providers.keyring import Keyring
from orchestration.providers.posting import Posting
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
    dialect = Dialect(
        encode=AnthropicEncoder(
            settings.name,
            settings.extra_body,
            marks_cache=settings.prompt_cache is not False,
            takes_schema=settings.takes_schema,
            streams=settings.stream,
        ),
        decoder=partial(AnthropicDecoder, settings.name),
        post=Posting(sdk, "/v1/messages", http),
        sdk_error=anthropic.AnthropicError,
        call_id_chars=settings.fits_call_ids(sdk.base_url.host),
        streams=settings.stream,
    )
    return ProviderClient(settings.name, dialect, http, keys)


def _base_url(configured: str | None) -> str | None:
    """This SDK adds `/v1` itself; an address that ends in it, as other protocols want it, means the same server."""
    return configured.rstrip("/").removesuffix("/v1") if configured else None
