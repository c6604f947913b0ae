"""From a provider's configuration to its client."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from orchestration.errors import ConfigError
from orchestration.providers.catalog import connect, preload
from orchestration.providers.settings import Api, ProviderSettings
from persistence.records.message import Text
from tests.providers.bench import APIS, KEY, ask, plain
from tests.providers.faults import Peer, serving, whole

LOCAL = "http://127.0.0.1:9/v1"
PATHS = {Api.OPENAI_CHAT: "chat/completions", Api.OPENAI_RESPONSES: "responses", Api.ANTHROPIC: "messages"}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_sdks_load_with_the_first_client_and_not_before() -> None:
    loaded = "print(sorted({'openai', 'anthropic', 'httpx2'} & set(sys.modules)))"

    assert run_python(f"import sys, orchestration.providers.catalog; {loaded}") == "[]"
    preloaded = run_python(f"import sys; from orchestration.providers import catalog; catalog.preload(); {loaded}")
    assert preloaded == "['anthropic', 'httpx2', 'openai']"


def test_no_sdk_loads_for_a_protocol_that_nobody_uses() -> None:
    loaded = "print(sorted({'openai', 'anthropic'} & set(sys.modules)))"
    wanted = "from orchestration.providers.settings import Api; catalog.preload([Api.OPENAI_CHAT])"

    assert run_python(f"import sys; from orchestration.providers import catalog; {wanted}; {loaded}") == "['openai']"


def test_preload_may_run_more_than_once() -> None:
    preload()
    preload()


@pytest.mark.parametrize(
    ("api", "ending"),
    [
        (Api.OPENAI_CHAT, "/v1"),
        (Api.OPENAI_CHAT, "/v1/"),
        (Api.OPENAI_RESPONSES, "/v1"),
        (Api.OPENAI_RESPONSES, "/v1/"),
        (Api.ANTHROPIC, ""),
        (Api.ANTHROPIC, "/"),
        (Api.ANTHROPIC, "/v1"),
        (Api.ANTHROPIC, "/v1/"),
    ],
)
def test_an_address_may_end_with_or_without_v1_where_the_sdk_adds_it(api: Api, ending: str) -> None:
    lines: list[str] = []

    def script(peer: Peer) -> None:
        lines.append(peer.request()[0])
        peer.send(whole(api))

    with (
        serving(script) as server,
        closing(connect(ProviderSettings("main", api, server.url + ending, (KEY,)))) as asked,
    ):
        ask(asked)

    assert lines == [f"POST /v1/{PATHS[api]} HTTP/1.1"]


@pytest.mark.parametrize("api", APIS)
def test_the_key_is_read_from_the_environment_and_is_the_only_one_sent(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-this-one")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-this-one")
    seen: list[dict[str, str]] = []

    def script(peer: Peer) -> None:
        seen.append(peer.request()[1])
        peer.send(whole(api))

    with serving(script) as server:
        settings = ProviderSettings("main", api, f"{server.url}/v1", ("env:MY_KEY", "sk-second"))
        with closing(connect(settings)) as asked:
            ask(asked)

    assert seen[0]["authorization"] == f"Bearer {KEY}"
    assert "sk-not-this-one" not in str(seen[0])


@pytest.mark.parametrize("api", APIS)
def test_a_local_server_needs_no_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-this-server")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-for-this-server")
    seen: list[dict[str, str]] = []

    def script(peer: Peer) -> None:
        seen.append(peer.request()[1])
        peer.send(whole(api))

    with serving(script) as server, closing(connect(ProviderSettings("main", api, f"{server.url}/v1"))) as asked:
        assert plain(ask(asked)) == (Text("Hello there"),)
        assert asked.name == "main"

    assert "sk-not-for-this-server" not in str(seen[0])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"base_url": None}, "neither api_keys nor a base_url"),
        ({"base_url": "ftp://127.0.0.1"}, "no http or https address"),
        ({"base_url": "127.0.0.1:8000"}, "no http or https address"),
        ({"api_keys": ("env:NO_SUCH_VARIABLE",)}, "NO_SUCH_VARIABLE"),
        ({"api_keys": ("sk-with\nnewline",)}, "characters that no key has"),
        ({"api_keys": ("sk-mit-ä",)}, "characters that no key has"),
        ({"extra_body": {"messages": [], "tools": []}}, "may not set messages, tools"),
        ({"extra_body": {"previous_response_id": "resp_1"}}, "may not set previous_response_id"),
        ({"extra_body": {"temperature": float("nan")}}, "extra_body"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_in_a_sentence(api: Api, wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"name": "main", "api": api, "base_url": LOCAL, **wrong}

    with pytest.raises(ConfigError, match=said) as caught:
        connect(ProviderSettings(**given))

    assert "sk-" not in str(caught.value)
