"""From the configuration of a provider to its model client. The SDKs load when the first client is made.

They take most of a second to import, and a process that only submits or reads never needs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestration.errors import ConfigError
from orchestration.providers.keyring import Keyring
from orchestration.providers.settings import Api, ProviderSettings
from persistence.records.message import dumps

if TYPE_CHECKING:
    from orchestration.providers.client import ProviderClient

# What a turn decides, not a provider: a provider that changed it would break the history or the grace call.
_NOT_EXTRA = (
    "conversation",
    "input",
    "instructions",
    "messages",
    "model",
    "previous_response_id",
    "system",
    "tool_choice",
    "tools",
)


def connect(settings: ProviderSettings) -> ProviderClient:
    """The client of one provider, with one pool of connections. Make one per process, after it forked, and keep it.

    Raises ConfigError.
    """
    check(settings)
    keys = Keyring(settings)
    for key in keys.secrets:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"A key of [providers.{settings.name}] has characters that no key has: check api_keys.")
    if not settings.api_keys and settings.base_url is None:
        raise ConfigError(
            f"The provider {settings.name!r} has neither api_keys nor a base_url: set one of them under "
            f"[providers.{settings.name}]."
        )
    match settings.api:
        case Api.OPENAI_CHAT:
            from orchestration.providers.openai_chat import client as openai_chat

            return openai_chat.connect(settings, keys)
        case Api.ANTHROPIC:
            from orchestration.providers.anthropic_messages import client as anthropic_messages

            return anthropic_messages.connect(settings, keys)
        case Api.OPENAI_RESPONSES:
            from orchestration.providers.openai_responses import client as openai_responses

            return openai_responses.connect(settings, keys)


_ADAPTERS = {
    Api.OPENAI_CHAT: "openai_chat",
    Api.OPENAI_RESPONSES: "openai_responses",
    Api.ANTHROPIC: "anthropic_messages",
}


def preload(apis: Iterable[Api] = Api) -> None:
    """Import what `connect` will need for these protocols, so that no turn waits for it.

    For a background thread at a worker's start. An SDK takes up to two seconds of CPU and 40 MB: name no other protocols
    than those that are configured.
    """
    for api in apis:
        importlib.import_module(f"orchestration.providers.{_ADAPTERS[api]}.client")


def check(settings: ProviderSettings) -> None:
    """Raises ConfigError for what can never be used, whatever the environment."""
    where = f"[providers.{settings.name}]"
    if settings.base_url is not None:
        address = urlsplit(settings.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"The base_url of {where} is no http or https address.")
    wrong = [name for name in _NOT_EXTRA if name in settings.extra_body]
    if wrong:
        raise ConfigError(f"extra_body of {where} may not set {', '.join(wrong)}: a turn decides that.")
    if settings.extra_body.get("background") and settings.api is not Api.OPENAI_RESPONSES:
        raise ConfigError(
            f'extra_body of {where} asks for background = true, which api = "{Api.OPENAI_RESPONSES.value}" has and '
            f'"{settings.api.value}" has not: change one of them.'
        )
    try:
        dumps(dict(settings.extra_body))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra_body of {where} cannot be sent as JSON: {error}") from error
