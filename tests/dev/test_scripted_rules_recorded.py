"""Requests that the real APIs took are taken here too; the recordings stay outside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.dev.scripted_provider.rules import House, Refused, check, parse
from ops.dev.scripted_provider.signatures import Signer

TRAFFIC = Path(__file__).parents[3] / "shared" / "traffic"
APIS: dict[str, Any] = {
    "/v1/chat/completions": "openai",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
}

# Where this server is stricter on purpose: thinking that it did not sign, and what only betas know.
STRICTER = {"anthropic.thinking_signature", "anthropic.mid_system", "openai.encrypted_content"}
# Requests that go on from what a provider keeps: their calls are not in them.
CONTINUED = {"previous_response_id", "conversation"}


def accepted() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for path in sorted(TRAFFIC.glob("*.json")):
        exchange = json.loads(path.read_text())
        if APIS.get(exchange["request"]["path"]) is None or exchange["origin"] != "recorded":
            continue
        is_beta = "output_format" in exchange["request"]["body"]
        if exchange["response"]["status"] < 300 and not is_beta and not CONTINUED & exchange["request"]["body"].keys():
            found.append((path.stem, exchange))
    return found


def rule_against(exchange: dict[str, Any]) -> str | None:
    headers = {"authorization": "Bearer x", "anthropic-version": "2026-10-21"}
    try:
        body = parse(json.dumps(exchange["request"]["body"]).encode())
        check(APIS[exchange["request"]["path"]], body, headers, House(Signer()))
    except Refused as refused:
        return refused.rule
    return None


@pytest.mark.skipif(not TRAFFIC.is_dir(), reason="recorded traffic (../shared/traffic) is not here")
def test_every_request_that_a_real_provider_took_is_taken():
    exchanges = accepted()

    refused = {name: rule for name, exchange in exchanges if (rule := rule_against(exchange)) is not None}

    assert len(exchanges) > 150
    assert {name: rule for name, rule in refused.items() if rule not in STRICTER} == {}
    assert len(refused) < len(exchanges) / 20
