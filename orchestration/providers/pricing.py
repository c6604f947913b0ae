"""Usage -> cost, in dollars: the configuration's own prices, then the list prices of the `genai-prices` library.

The library's prices are those that were bundled with the installed version; it is never told to fetch newer ones. They
hold for the addresses of the companies that charge them, so a server of one's own has a price only where the
configuration gives one. What is not known is None, never 0.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import urlsplit

from orchestration.providers.settings import Api, Price, ProviderSettings
from persistence.records.usage import Usage

log = logging.getLogger(__name__)

_COMPANY = {
    Api.OPENAI_CHAT: "https://api.openai.com/v1",
    Api.OPENAI_RESPONSES: "https://api.openai.com/v1",
    Api.ANTHROPIC: "https://api.anthropic.com",
}
# What a request can say that changes its price, in the words of the providers and of the library.
_PRICED_FIELDS = ("service_tier", "speed")


class PriceBook:
    """What a call costs, by the name of its provider in the configuration and the name of its model. Thread-safe.

    `overrides` are keyed "model" or "provider:model", the longer key first.
    """

    def __init__(self, providers: Mapping[str, ProviderSettings], overrides: Mapping[str, Price]) -> None:
        self._overrides = overrides
        found = {name: _Seller.of(settings) for name, settings in providers.items()}
        self._sellers = {name: seller for name, seller in found.items() if _is_public(seller.address)}

    def __call__(self, provider: str, model: str, usage: Usage) -> Decimal | None:
        """The cost of `usage`; None where no price is known. Never raises: an answer is worth more than its price."""
        override = self._overrides.get(f"{provider}:{model}") or self._overrides.get(model)
        if override is not None:
            return override.of(usage)
        seller = self._sellers.get(provider)
        if seller is None:
            return None
        try:
            return _list_price(model, seller, usage)
        except LookupError:
            return None
        except Exception:  # data and code of others, for which no answer may be lost
            log.exception("model.not_priced", extra={"provider": provider, "model": model})
            return None

    def preload(self) -> None:
        """Import the list prices, where any provider charges them. For a background thread at a worker's start."""
        for name in self._sellers:
            self(name, "", Usage())


@dataclass(frozen=True, slots=True)
class _Seller:
    """Whose price list holds, and what every request says that changes a price on it."""

    address: str
    says: Mapping[str, str]

    @classmethod
    def of(cls, settings: ProviderSettings) -> _Seller:
        said = {name: settings.extra_body.get(name) for name in _PRICED_FIELDS}
        words = {name: word for name, word in said.items() if isinstance(word, str)}
        return cls(settings.base_url or _COMPANY[settings.api], words)


def _list_price(model: str, seller: _Seller, usage: Usage) -> Decimal | None:
    """What a company's price list says. Raises LookupError where the company or the model has none."""
    # A second and 40 MB, which nothing but a priced call needs.
    import genai_prices

    found = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=usage.total - usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            output_reasoning_tokens=min(usage.reasoning_tokens, usage.output_tokens),
        ),
        model,
        provider_api_url=seller.address,
        price_context=seller.says,
    )
    # The list has models that charge by the page, the minute or the request: half a price would be a wrong one.
    prices = found.model_price
    return None if prices.input_mtok is None or prices.output_mtok is None else found.total_price


def _is_public(address: str) -> bool:
    """Whether the address may be a company's: not a number, and not a bare name like `localhost`."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:  # no address at all
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." in host
    return False
