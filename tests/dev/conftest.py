"""Clients of the official SDKs for the scripted provider, with their own retries off."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.support.provider import ScriptedProvider, provider

__all__ = ["provider"]


@pytest.fixture
def openai_client(provider: ScriptedProvider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=provider.api_key, base_url=provider.openai_url, max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def anthropic_client(provider: ScriptedProvider) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        api_key=provider.api_key, base_url=provider.anthropic_url, max_retries=0, timeout=20
    ) as client:
        yield client
