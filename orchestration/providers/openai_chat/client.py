"""A ModelClient for OpenAI Chat Completions, through the openai SDK.

The SDK keeps what it is good at: addresses, authentication, headers, pooling, classes of errors. The body is sent as
bytes and the answer is read as bytes, so no call pays for validating its whole history again.
"""

from __future__ import annotations

from functools import partial

import openai

from orchestration.providers.client import Dialect, ProviderClient, http_client
from orchestration.providers.keyring import Keyring
from orchestration.providers.openai_chat.decoding import OpenAIDecoder
from orchestration.providers.openai_chat.encoding import OpenAIEncoder
from orchestration.providers.posting import Posting
from orchestration.providers.settings import ProviderSettings

# The SDK wants a key, many local servers do not: this is what they get.
NO_KEY = "none"


def connect(settings: ProviderSettings, keys: Keyring) -> ProviderClient:
    """The client of one provider. The SDK knows a key that never changes; any other is given to it with each request."""
    http = http_client()
    sdk = openai.OpenAI(
        api_key=keys.secrets[0] if keys.is_static and keys.secrets else NO_KEY,
        base_url=settings.base_url,
        max_retries=0,
        timeout=None,
        http_client=http,
    )
    dialect = Dialect(
        encode=OpenAIEncoder(
            settings.name,
            settings.extra_body,
            sends_cache_key=settings.sends_cache_key(sdk.base_url.host),
            takes_schema=settings.takes_schema,
            streams=settings.stream,
        ),
        decoder=partial(OpenAIDecoder, settings.name),
        post=Posting(sdk, "/chat/completions", http),
        sdk_error=openai.OpenAIError,
        call_id_chars=settings.fits_call_ids(sdk.base_url.host),
        streams=settings.stream,
    )
    return ProviderClient(settings.name, dialect, http, keys)
