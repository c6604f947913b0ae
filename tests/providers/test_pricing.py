"""What a call costs: the configuration's prices, the list prices, and what nobody knows."""

from __future__ import annotations

import logging
import subprocess
import sys
from decimal import Decimal

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.providers.pricing import PriceBook
from orchestration.providers.settings import Api, Price, ProviderSettings
from persistence.records.usage import Usage

OPENAI = ProviderSettings("openai", Api.OPENAI_CHAT)
ANTHROPIC = ProviderSettings("claude", Api.ANTHROPIC)
LOCAL = ProviderSettings("local", Api.OPENAI_CHAT, "http://127.0.0.1:11434/v1")
PROVIDERS = {p.name: p for p in (OPENAI, ANTHROPIC, LOCAL)}
MILLION = Usage(input_tokens=1_000_000)
DEAR = Price(Decimal(7), Decimal(70))

tokens = st.integers(0, 10**9)
usages = st.builds(Usage, tokens, tokens, tokens, tokens, tokens)


def book(**overrides: Price) -> PriceBook:
    return PriceBook(PROVIDERS, overrides)


def test_every_kind_of_token_has_its_own_list_price() -> None:
    cost = book()

    assert cost("claude", "claude-haiku-4-5", MILLION) == Decimal(1)
    assert cost("claude", "claude-haiku-4-5", Usage(output_tokens=1_000_000)) == Decimal(5)
    assert cost("claude", "claude-haiku-4-5", Usage(cache_read_tokens=1_000_000)) == Decimal("0.1")
    assert cost("claude", "claude-haiku-4-5", Usage(cache_write_tokens=1_000_000)) == Decimal("1.25")
    assert cost("openai", "gpt-5-mini", Usage(300_000, 50_000, 700_000)) == Decimal("0.1925")


def test_reasoning_is_output_and_not_paid_twice() -> None:
    thought, silent = Usage(100, 1_000, reasoning_tokens=900), Usage(100, 1_000)

    assert book()("openai", "gpt-5-mini", thought) == book()("openai", "gpt-5-mini", silent)
    assert DEAR.of(thought) == DEAR.of(silent)


def test_the_dated_name_that_a_provider_answers_with_has_the_price_of_its_model() -> None:
    assert book()("openai", "gpt-5-mini-2025-08-07", MILLION) == book()("openai", "gpt-5-mini", MILLION)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "no-such-model"),
        ("local", "gpt-5-mini"),
        ("nobody", "gpt-5-mini"),
        ("openai", "text-embedding-3-small"),
    ],
    ids=["model", "own server", "provider", "without a price for output"],
)
def test_what_has_no_price_is_unknown_and_not_free(provider: str, model: str) -> None:
    assert book()(provider, model, MILLION) is None


@pytest.mark.parametrize("host", ["localhost", "[::1]", "llm", "10.0.0.7", "[::1"])
def test_a_server_of_ones_own_has_no_list_price(host: str) -> None:
    own = ProviderSettings("own", Api.ANTHROPIC, f"http://{host}:8080")

    assert PriceBook({"own": own}, {})("own", "claude-haiku-4-5", MILLION) is None


def test_a_reseller_has_its_own_list() -> None:
    router = ProviderSettings("router", Api.OPENAI_CHAT, "https://openrouter.ai/api/v1")

    assert PriceBook({"router": router}, {})("router", "anthropic/claude-haiku-4.5", MILLION) == Decimal(1)


def test_a_service_tier_that_is_asked_for_has_its_own_price() -> None:
    flex = ProviderSettings("flex", Api.OPENAI_CHAT, extra_body={"service_tier": "flex", "speed": 3})

    assert PriceBook({"flex": flex}, {})("flex", "gpt-5-mini", MILLION) == Decimal("0.125")


def test_a_configured_price_counts_before_a_list_price_whoever_serves_the_model() -> None:
    cost = PriceBook(PROVIDERS, {"gpt-5-mini": DEAR, "local:gpt-5-mini": Price(Decimal(0), Decimal(0))})

    assert cost("openai", "gpt-5-mini", MILLION) == Decimal(7)
    assert cost("nobody", "gpt-5-mini", MILLION) == Decimal(7)
    assert cost("local", "gpt-5-mini", MILLION) == Decimal(0), "said to be free, which is not unknown"


def test_a_kind_of_input_without_a_configured_price_costs_what_other_input_costs() -> None:
    cached = Price(Decimal(7), Decimal(70), Decimal("0.7"), Decimal(0))
    used = Usage(1_000_000, 1_000_000, 1_000_000, 1_000_000)

    assert DEAR.of(used) == Decimal(7 + 70 + 7 + 7)
    assert cached.of(used) == Decimal("77.7")


@given(usages)
def test_a_configured_price_is_the_exact_sum_over_all_kinds(used: Usage) -> None:
    price = Price(Decimal("0.1"), Decimal("0.2"), Decimal("0.3"), Decimal("0.4"))

    exact = used.input_tokens + 2 * used.output_tokens + 3 * used.cache_read_tokens + 4 * used.cache_write_tokens
    assert price.of(used) == Decimal(exact) / 10_000_000


@given(usages, usages)
def test_no_usage_has_a_negative_price_and_more_of_it_is_never_cheaper(used: Usage, more: Usage) -> None:
    cost = book()

    less_cost, more_cost = (cost("openai", "gpt-5-mini", u) for u in (used, used + more))

    assert less_cost is not None
    assert more_cost is not None
    assert 0 <= less_cost <= more_cost


def test_a_usage_that_makes_no_sense_has_no_price_and_loses_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert book()("openai", "gpt-5-mini", Usage(input_tokens=-5)) is None

    assert "model.not_priced" in caplog.text


def test_the_price_list_loads_with_the_first_price_and_never_asks_the_network() -> None:
    loaded = "print('genai_prices' in sys.modules)"
    made = "from orchestration.providers import pricing; from orchestration.providers.settings import *"
    local = "pricing.PriceBook({'a': ProviderSettings('a', Api.OPENAI_CHAT, 'http://127.0.0.1/v1')}, {}).preload()"
    public = "pricing.PriceBook({'a': ProviderSettings('a', Api.OPENAI_CHAT)}, {}).preload()"
    code = f"import sys; {made}; {local}; {loaded}; {public}; {loaded}"

    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    assert said == ["False", "True"]
    assert book()("openai", "gpt-5-mini", MILLION) is not None
    assert not genai_prices.wait_prices_updated_sync(timeout=0), "its updater runs only where somebody starts it"


def test_the_processes_start_without_the_price_list() -> None:
    code = "import sys, workers.celery_app, workers.cli.main; print('genai_prices' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
