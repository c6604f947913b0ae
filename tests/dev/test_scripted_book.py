"""Gates hold replies, and the server writes down what it saw."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from ops.dev.scripted_provider.script import Gate, Reply, Text, reply
from tests.support.provider import ScriptedProvider, key_digest

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def ask(client: openai.OpenAI, model: str) -> str:
    chunks = client.chat.completions.create(model=model, messages=HELLO, stream=True)
    return "".join(c.choices[0].delta.content or "" for c in chunks)


def test_a_reply_waits_at_its_gate_until_it_is_opened(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("gated", [reply("through", gate=Gate("g"))])
    gate = provider.gate("g")

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask, openai_client, model) for _ in range(3)]
        gate.wait_for(3)
        assert not any(a.done() for a in asking)
        gate.let(1)
        provider.wait_until(lambda: sum(a.done() for a in asking) == 1, "one comes through", timeout_s=5)
        assert gate.waiting == 2
        gate.open()
        assert [a.result(5) for a in asking] == ["through"] * 3

    assert ask(openai_client, model) == "through"
    assert (gate.waiting, gate.arrived) == (0, 4)


def test_a_gate_that_was_let_go_before_lets_that_many_through(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("early", [reply("through", gate=Gate("early"))])
    provider.gate("early").let(1)

    assert ask(openai_client, model) == "through"
    with pytest.raises(openai.APITimeoutError):
        ask(openai_client.with_options(timeout=0.2), model)


def test_a_gate_may_stand_in_the_middle_of_the_words(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("middle", [reply("first half, second half", chunk_chars=12, gate=Gate("m", "mid-text"))])
    seen: list[str] = []

    def read() -> None:
        for chunk in openai_client.chat.completions.create(model=model, messages=HELLO, stream=True):
            seen.append(chunk.choices[0].delta.content or "")

    reading = threading.Thread(target=read)
    reading.start()
    provider.gate("m").wait_for(1)
    provider.wait_until(lambda: "".join(seen) == "first half, ", "the first half", timeout_s=5)
    provider.gate("m").open()
    reading.join(5)

    assert "".join(seen) == "first half, second half"


def test_whoever_leaves_a_gate_no_longer_waits_there(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("left", [reply("never", gate=Gate("left"))])

    with pytest.raises(openai.APITimeoutError):
        ask(openai_client.with_options(timeout=0.2), model)

    provider.wait_until(lambda: provider.gate("left").waiting == 0, "nobody waits", timeout_s=5)
    assert provider.gate("left").arrived == 1
    assert provider.requests("left")[0].disconnected_s is not None


def test_a_request_is_kept_with_its_times_and_without_its_key(provider: ScriptedProvider, openai_client: openai.OpenAI):
    model = provider.script("kept", [reply("well")])
    before = time.monotonic()

    ask(openai_client, model)

    (seen,) = provider.requests("kept")
    assert seen.messages == HELLO
    assert (seen.api, seen.model, seen.step, seen.attempt, seen.answer) == ("openai", model, 0, 1, 200)
    assert before <= seen.monotonic <= time.monotonic()
    assert seen.finished_s is not None
    assert seen.disconnected_s is None
    assert seen.headers["authorization"] == key_digest(provider.api_key)
    assert provider.api_key not in str(seen.to_json())


def test_the_requests_of_one_script_are_told_from_the_others(provider: ScriptedProvider, openai_client: openai.OpenAI):
    one, two = provider.script("one", [reply("1")]), provider.script("two", [reply("2")])

    for model in (one, two, one):
        ask(openai_client, model)

    assert [r.n for r in provider.requests("one")] == [1, 3]
    assert [r.n for r in provider.requests(two)] == [2]
    assert len(provider.wait_for_requests("one", 2)) == 2
    provider.clear()
    assert provider.requests() == []


def test_the_fixture_fails_a_test_whose_request_was_refused(provider: ScriptedProvider, openai_client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError, match="no script is called 'nobody'"):
        ask(openai_client, "scripted-nobody")

    with pytest.raises(AssertionError, match=r"script\.unknown"):
        provider.assert_none_refused()
    provider.expect_refusals()
    provider.assert_none_refused()


def test_a_policy_that_fails_is_a_refusal_and_the_server_goes_on(
    provider: ScriptedProvider, openai_client: openai.OpenAI, capfd: pytest.CaptureFixture[str]
):
    def confused(asked: Any) -> Reply:
        return Reply((Text(asked.messages[7].text),))

    bad, good = provider.script("bad", confused), provider.script("good", [reply("well")])
    provider.expect_refusals()

    with pytest.raises(openai.InternalServerError, match="IndexError"):
        ask(openai_client, bad)

    assert ask(openai_client, good) == "well"
    assert provider.refusals()[0].refused == "script.failed"
    assert "IndexError" in capfd.readouterr().err


def test_a_closed_provider_leaves_nobody_waiting():
    running = ScriptedProvider()
    model = running.script("stuck", [reply("never", gate=Gate("stuck"))])
    client = openai.OpenAI(api_key="x", base_url=running.openai_url, max_retries=0, timeout=20)

    with ThreadPoolExecutor(1) as pool, client:
        asking = pool.submit(ask, client, model)
        running.gate("stuck").wait_for(1)
        running.close()
        with pytest.raises(openai.APIConnectionError):
            asking.result(5)
