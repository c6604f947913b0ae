"""An answer that OpenAI makes in the background is bought once, whoever fetches it, and given up only when it is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ops.dev.scripted_provider.script import Gate, broken, calls, hang, reply, status
from orchestration.errors import AnswerLost, CallInterrupted, ErrorClass, ModelError, OwnFault
from orchestration.ports import BackgroundClient, Finish, KeyedClient, Reply, Started, TimeLimits
from orchestration.providers.catalog import connect
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.stopping import Stop
from persistence.records.message import Text
from tests.providers.bench import APIS, KEY, ask, assistant, client, collecting, plain, request, results, user
from tests.providers.faults import Peer, document, serving, whole
from tests.support.provider import ScriptedProvider, key_digest, provider

__all__ = ["provider"]

LIMITS = TimeLimits(5, 5, 5, 20)
PATIENCE_S = 10.0


@contextmanager
def background(url: str, *, key: str = KEY, **extra_body: Any) -> Generator[BackgroundClient]:
    """A client of the server at `url`, as a worker makes it."""
    settings = ProviderSettings(
        "main", Api.OPENAI_RESPONSES, f"{url}/v1", (key,), extra_body={"background": True, **extra_body}
    )
    made: Any = connect(settings)
    try:
        yield made
    finally:
        made.close()


def start(asked: BackgroundClient, model: str = "some-model", **more: Any) -> Started:
    found = asked.start(
        request([user("Hello.")], model=model, limits=LIMITS, **more), stop=Stop(), on_text=lambda _: None
    )
    assert isinstance(found, Started), found
    return found


def fetch(
    asked: BackgroundClient, started: Started, *, stop: Stop | None = None, heard: list[str] | None = None
) -> Any:
    return asked.fetch(started, limits=LIMITS, stop=stop or Stop(), on_text=collecting(heard))


def fetch_until_done(asked: BackgroundClient, started: Started, heard: list[str] | None = None) -> Reply:
    deadline = time.monotonic() + PATIENCE_S
    while not isinstance(found := fetch(asked, started, heard=heard), Reply):
        assert time.monotonic() < deadline, "it was never done"
        time.sleep(0.01)
    return found


def at_work(**more: Any) -> bytes:
    return json.dumps({"id": "resp_1", "status": "in_progress", "output": [], **more}).encode()


# --- start, fetch


def test_only_this_protocol_has_a_background(provider: ScriptedProvider) -> None:
    for api in APIS:
        with client(api, provider.url) as asked:
            assert isinstance(asked, BackgroundClient) is (api is Api.OPENAI_RESPONSES)


def test_an_answer_is_fetched_by_its_id_from_another_process_and_not_bought_again(provider: ScriptedProvider) -> None:
    model = provider.script("slow", [calls(("add", {"a": 1}), text="Let me add.", gate=Gate("work")), reply("Done.")])
    with background(provider.url) as dead:
        kept = start(dead, model).id

    heard: list[str] = []
    with background(provider.url) as alive:
        first = fetch(alive, Started(kept))
        provider.gate("work").open()
        said = fetch_until_done(alive, Started(kept), heard)
        again = fetch(alive, Started(kept))

    assert isinstance(first, Started)
    assert first.id == kept
    assert said.finish is Finish.TOOL_CALLS
    assert plain(said)[0] == Text("Let me add.")
    assert heard == ["Let me add."]
    assert again == said
    assert said.usage is not None
    assert len(provider.requests("slow")) == 1


def test_a_conversation_in_the_background_is_never_refused(provider: ScriptedProvider) -> None:
    steps = [calls(("add", {"a": n}), text=f"Step {n}.", thinking="Hm.") for n in range(3)]
    model = provider.script("long", [*steps, reply("Done.")])
    history = [user("Hello.")]

    with background(provider.url) as asked:
        while True:
            sent = request(history, model=model, limits=LIMITS)
            found = asked.start(sent, stop=Stop(), on_text=lambda _: None)
            assert isinstance(found, Started)
            said = fetch_until_done(asked, found)
            history.append(assistant(*said.content))
            if said.finish is Finish.STOP:
                break
            history.append(results(*((call.id, "3") for call in history[-1].calls)))

    assert plain(said) == (Text("Done."),)
    assert len(provider.requests("long")) == 4


def test_a_provider_that_answers_at_once_has_answered() -> None:
    bodies = [("application/json", document(Api.OPENAI_RESPONSES)), ("", whole(Api.OPENAI_RESPONSES))]

    for kind, payload in bodies:

        def script(peer: Peer, kind: str = kind, payload: bytes = payload) -> None:
            peer.request()
            if kind:
                peer.answer(200, payload, kind)
            else:
                peer.send(payload)

        with serving(script) as server, background(server.url) as asked:
            found = asked.start(request([user("x")]), stop=Stop(), on_text=lambda _: None)

        assert isinstance(found, Reply)
        assert plain(found) == (Text("Hello there"),)


def test_the_pause_that_a_provider_asks_for_comes_with_what_has_started() -> None:
    def script(peer: Peer) -> None:
        for pause in ("1500", "soon", "-1", ""):
            peer.request()
            peer.answer(200, at_work(), openai_poll_after_ms=pause)

    with serving(script) as server, background(server.url) as asked:
        pauses = [start(asked).look_again_s, *(fetch(asked, Started("resp_1")).look_again_s for _ in range(3))]

    assert pauses == [1.5, None, None, None]


def test_a_response_is_looked_for_with_the_key_that_it_was_started_with(provider: ScriptedProvider) -> None:
    model = provider.script("keys", [reply("Hello.")])
    keys = (f"{KEY}-a", f"{KEY}-b")
    settings = ProviderSettings(
        "main", Api.OPENAI_RESPONSES, f"{provider.url}/v1", keys, extra_body={"background": True}
    )
    with closing(connect(settings)) as first, closing(connect(settings)) as second:
        assert isinstance(first, BackgroundClient)
        assert isinstance(second, BackgroundClient)
        started = start(first, model, key=1)
        kept = Started(started.id, key=started.key)

        said = fetch_until_done(second, kept)
        second.interrupt(kept)

        with pytest.raises(ModelError, match="key 3"):
            fetch(second, Started(started.id, key=2))
    assert plain(said) == (Text("Hello."),)
    used = {r.headers["authorization"] for r in provider.requests()}
    assert (started.key, used) == (1, {key_digest(keys[1])})


def test_an_id_is_no_path() -> None:
    lines: list[str] = []

    def script(peer: Peer) -> None:
        lines.append(peer.request()[0])
        peer.answer(200, document(Api.OPENAI_RESPONSES))

    with serving(script) as server, background(server.url) as asked:
        fetch(asked, Started("../files/x?y"))

    assert lines == ["GET /v1/responses/..%2Ffiles%2Fx%3Fy HTTP/1.1"]


# --- what becomes of failures


@pytest.mark.parametrize(
    ("code", "meant"),
    [("server_error", ErrorClass.SERVER_ERROR), ("rate_limit_exceeded", ErrorClass.RATE_LIMIT)],
)
def test_a_response_that_failed_is_lost(provider: ScriptedProvider, code: str, meant: ErrorClass) -> None:
    model = provider.script("fails", [broken(reply("Hello."), "error", error=code)])

    with background(provider.url) as asked, pytest.raises(AnswerLost) as caught:
        fetch_until_done(asked, start(asked, model))

    assert caught.value.error is meant


def test_a_response_that_is_kept_no_more_is_lost_and_may_be_asked_for_anew(provider: ScriptedProvider) -> None:
    provider.expect_refusals()

    with background(provider.url) as asked, pytest.raises(AnswerLost) as caught:
        fetch(asked, Started("resp_long_gone"))

    assert (caught.value.error, caught.value.status) == (ErrorClass.UNKNOWN, 404)
    assert "resp_long_gone" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        (500, ErrorClass.SERVER_ERROR),
        (429, ErrorClass.RATE_LIMIT),
        (401, ErrorClass.AUTH),
        (503, ErrorClass.OVERLOADED),
    ],
)
def test_a_look_that_failed_says_nothing_of_the_answer(code: int, meant: ErrorClass) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(code, b"{}", retry_after="7")

    with serving(script) as server, background(server.url) as asked, pytest.raises(ModelError) as caught:
        fetch(asked, Started("resp_1"))

    assert not isinstance(caught.value, AnswerLost)
    assert (caught.value.error, caught.value.retry_after_s) == (meant, 7.0)


@pytest.mark.parametrize("payload", [b"{}", b'{"status": "completed"', b'{"status": "queued"}', b"[]"])
def test_nonsense_in_the_place_of_a_response_says_nothing_of_the_answer(payload: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, payload)

    with serving(script) as server, background(server.url) as asked, pytest.raises(ModelError) as caught:
        fetch(asked, Started("resp_1"))

    assert not isinstance(caught.value, AnswerLost)
    assert caught.value.error is ErrorClass.MALFORMED_STREAM


def test_a_request_that_is_refused_has_started_nothing(provider: ScriptedProvider) -> None:
    model = provider.script("busy", [status(429, retry_after=3)])

    with background(provider.url) as asked, pytest.raises(ModelError) as caught:
        start(asked, model)

    assert (caught.value.error, caught.value.retry_after_s) == (ErrorClass.RATE_LIMIT, 3.0)


def test_a_stop_leaves_the_answer_to_whoever_carries_the_turn_now(provider: ScriptedProvider) -> None:
    model = provider.script("slow", [reply("Hello.", gate=Gate("work"))])
    stop = Stop()
    stop.set()

    with background(provider.url) as asked:
        started = start(asked, model)
        with pytest.raises(CallInterrupted):
            fetch(asked, started, stop=stop)
        provider.gate("work").open()
        said = fetch_until_done(asked, started)

    assert plain(said) == (Text("Hello."),)


def test_an_answer_that_nobody_wants_is_ended_at_the_provider(provider: ScriptedProvider) -> None:
    model = provider.script("slow", [reply("Hello.", gate=Gate("never"))])

    with background(provider.url) as asked:
        started = start(asked, model)
        asked.interrupt(started)
        with pytest.raises(AnswerLost, match="cancelled"):
            fetch(asked, started)


def test_an_answer_that_was_finished_when_it_is_ended_says_what_it_came_to() -> None:
    def script(peer: Peer) -> None:
        for payload in (document(Api.OPENAI_RESPONSES), at_work(status="cancelled"), at_work(), b"<html>"):
            peer.request()
            peer.answer(200, payload)

    with serving(script) as server, background(server.url) as asked:
        told = [asked.interrupt(Started("resp_1")) for _ in range(4)]

    assert told[0] is not None
    assert told[0].output_tokens > 0
    assert told[1:] == [None, None, None]


def test_to_end_an_answer_takes_no_longer_than_a_stop_may() -> None:
    with serving(lambda peer: peer.is_over.wait(PATIENCE_S)) as server, background(server.url) as asked:
        started_at = time.monotonic()
        with pytest.raises(ModelError) as caught:
            asked.interrupt(Started("resp_1"))
        took = time.monotonic() - started_at

    assert caught.value.error is ErrorClass.CALL_TIMEOUT
    assert took < 3.0


# --- in one attempt, for who keeps no ids


def test_one_attempt_waits_until_the_answer_is_there(provider: ScriptedProvider) -> None:
    model = provider.script("slow", [reply("Hello.", delay_s=0.3)])
    heard: list[str] = []

    with background(provider.url) as asked:
        said = ask(asked, model=model, heard=heard)

    assert plain(said) == (Text("Hello."),)
    assert heard == ["Hello."]
    assert len(provider.requests("slow")) == 1


def test_a_stop_of_the_one_attempt_ends_the_answer_at_the_provider(provider: ScriptedProvider) -> None:
    model = provider.script("slow", [reply("Hello.", gate=Gate("never"))])
    stop = Stop()

    with background(provider.url) as asked, ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, asked, model=model, stop=stop)
        provider.gate("never").wait_for(1)
        stop.set()
        error = running.exception(PATIENCE_S)
        (response,) = {r.script for r in provider.requests() if r.script.startswith("resp_")}
        with pytest.raises(AnswerLost, match="cancelled"):
            fetch(asked, Started(response))

    assert isinstance(error, CallInterrupted)


def test_a_stop_of_the_one_attempt_waits_for_no_key_that_is_fetched_slowly(
    provider: ScriptedProvider, tmp_path: Path
) -> None:
    model = provider.script("slow", [reply("Hello.", gate=Gate("never"))])
    once = f"command:sh -c 'mkdir {tmp_path}/first && echo {KEY} || sleep 60'"
    stop = Stop()

    with background(provider.url, key=once) as asked, ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, asked, model=model, stop=stop)
        provider.gate("never").wait_for(1)
        assert isinstance(asked, KeyedClient)
        asked.keys.refresh(0, used_at=time.monotonic())
        stop.set()
        error = running.exception(PATIENCE_S)

    assert isinstance(error, CallInterrupted)


def test_a_fault_of_ours_in_the_one_attempt_ends_the_answer_at_the_provider() -> None:
    asked_for: list[str] = []

    def script(peer: Peer) -> None:
        while True:
            first = peer.request()[0]
            asked_for.append(first.split(" HTTP")[0])
            is_start = first.startswith("POST /v1/responses HTTP")
            peer.answer(200, b'{"id": "resp_1", "status": "queued"}' if is_start else document(Api.OPENAI_RESPONSES))

    def fail(_: object) -> None:
        raise LookupError("a fault of ours")

    sent = request([user("Hello.")], limits=LIMITS)
    with serving(script) as server, background(server.url) as asked, pytest.raises(OwnFault):
        asked.reply(sent, stop=Stop(), on_text=fail)

    assert asked_for == ["POST /v1/responses", "GET /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel"]


def test_the_one_attempt_ends_at_the_limit_of_the_call(provider: ScriptedProvider) -> None:
    model = provider.script("slow", [reply("Hello.", gate=Gate("never"))])

    with background(provider.url) as asked, pytest.raises(ModelError) as caught:
        ask(asked, model=model, limits=TimeLimits(5, 5, 5, 0.8))

    assert caught.value.error is ErrorClass.CALL_TIMEOUT
    assert "no whole answer within 0.8 s" in str(caught.value)


def test_a_provider_that_cannot_be_told_to_stop_changes_nothing() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.answer(200, at_work())
        peer.request()
        peer.answer(500, b"{}")
        peer.request()
        peer.answer(500, b"{}")

    with serving(script) as server, background(server.url) as asked, pytest.raises(ModelError) as caught:
        ask(asked)

    assert caught.value.error is ErrorClass.SERVER_ERROR


def test_a_background_that_streams_is_an_ordinary_attempt(provider: ScriptedProvider) -> None:
    model = provider.script("streams", [reply("Hello there.")])
    heard: list[str] = []

    with background(provider.url, stream=True, store=True) as asked:
        said = ask(asked, model=model, heard=heard)
        is_background = asked.is_background

    assert not is_background
    assert plain(said) == (Text("Hello there."),)
    assert len(heard) > 1


def test_a_server_that_hangs_is_given_up_at_its_limit(provider: ScriptedProvider) -> None:
    model = provider.script("hangs", [hang()])

    with background(provider.url) as asked, pytest.raises(ModelError) as caught:
        ask(asked, model=model, limits=TimeLimits(5, 0.4, 5, 5))

    assert caught.value.error is ErrorClass.FIRST_TOKEN_TIMEOUT
