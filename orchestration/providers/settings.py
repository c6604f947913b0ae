"""What the configuration says of a provider, of a price and of a model's limits, as plain values.

A key stays a reference ("env:NAME") until a request is about to be made, so that no stored, logged or printed
value ever holds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from orchestration.errors import ConfigError
from persistence.records.usage import Usage

ENV_REFERENCE = "env:"
COMMAND_REFERENCE = "command:"
ENTRY_POINT_REFERENCE = "entry-point:"
# The group of entry points that a package may offer keys in.
KEY_ENTRY_POINTS = "perdure.keys"
# The company's own addresses, those of its regions too.
_OPENAI_HOST = re.compile(r"([a-z]+\.)?api\.openai\.com")
# And those of one that takes ids of calls in one length alone.
_MISTRAL_HOST = re.compile(r"(api|codestral)\.mistral\.ai")
_MISTRAL_CALL_ID_CHARS = 9


class Api(StrEnum):
    """The wire protocol that a provider speaks."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"


class KeyStrategy(StrEnum):
    """Which of several keys a turn begins with: the first one that is usable, one after the other, or the idlest."""

    ORDER = "order"
    ROUND_ROBIN = "round_robin"
    LEAST_USED = "least_used"


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One `[providers.NAME]`.

    `base_url` None is the public address of the protocol's own company. `api_keys` may be empty: many local servers
    want none. `prompt_cache` None is what the protocol's own company takes. Where it does not
    `takes_schema`, the schema of an answer is told in words. `call_id_chars` is the one length in which it takes ids of
    calls, letters and digits; None is what is known of its address. `stream` False asks for answers in one piece. What
    could hold a secret is left out of the repr.
    """

    name: str
    api: Api
    base_url: str | None = field(default=None, repr=False)
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    quota_group: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    prompt_cache: bool | None = None
    takes_schema: bool = True
    stream: bool = True
    key_strategy: KeyStrategy = KeyStrategy.ORDER
    call_id_chars: int | None = None

    def fits_call_ids(self, host: str) -> int | None:
        """The length in which ids of calls are sent to `host`, None where any will do."""
        usual = _MISTRAL_CALL_ID_CHARS if _MISTRAL_HOST.fullmatch(host) else None
        return self.call_id_chars or usual

    def sends_cache_key(self, host: str) -> bool:
        """Whether an OpenAI protocol's key for the prompt cache is sent to `host`.

        Others that imitate the protocol may refuse a field that they do not know, so it is for them to be asked.
        """
        return bool(_OPENAI_HOST.fullmatch(host)) if self.prompt_cache is None else self.prompt_cache

    def keys(self, environ: Mapping[str, str] = os.environ) -> tuple[str | None, ...]:
        """The keys themselves, in order, read from the environment now; None for one that is fetched when it is used.

        Keep them no longer than the client. Raises ConfigError when a variable that is referred to is unset or empty.
        """
        return tuple(self._resolve(key, environ) for key in self.api_keys)

    def _resolve(self, key: str, environ: Mapping[str, str]) -> str | None:
        if key.startswith((COMMAND_REFERENCE, ENTRY_POINT_REFERENCE)):
            return None
        if not key.startswith(ENV_REFERENCE):
            return key
        variable = key.removeprefix(ENV_REFERENCE)
        value = environ.get(variable, "").strip()
        if not value:
            raise ConfigError(
                f"The provider {self.name!r} takes its key from the environment variable {variable}, which is not set: "
                f"set it for this process, or change api_keys of [providers.{self.name}]."
            )
        return value


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, by kind of token. None: that kind costs what other input costs. Reasoning is output."""

    input_usd_per_million: Decimal
    output_usd_per_million: Decimal
    cache_read_usd_per_million: Decimal | None = None
    cache_write_usd_per_million: Decimal | None = None

    def of(self, usage: Usage) -> Decimal:
        """What `usage` costs, in dollars."""
        read, written = self.cache_read_usd_per_million, self.cache_write_usd_per_million
        return (
            usage.input_tokens * self.input_usd_per_million
            + usage.cache_read_tokens * (self.input_usd_per_million if read is None else read)
            + usage.cache_write_tokens * (self.input_usd_per_million if written is None else written)
            + usage.output_tokens * self.output_usd_per_million
        ) / 1_000_000


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model can take and give, in tokens, where the configuration knows it."""

    context_window: int | None = None
    max_output_tokens: int | None = None
