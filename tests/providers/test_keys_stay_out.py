"""A provider that quotes the key wherever it can: nothing that is stored, logged or raised has it."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import asdict

import pytest

from orchestration.errors import ModelError
from orchestration.providers.settings import Api
from tests.providers.bench import APIS, KEY, ask_once, client
from tests.providers.faults import END, HEADERS, Peer, chunk, chunks, event, opening, serving
from tests.support.workbench import Bench, bench, ledger, pool

__all__ = ["bench", "ledger", "pool"]

pytestmark = pytest.mark.parametrize("api", APIS)


def answers(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Callable[[Peer, Api], None]:
    def script(peer: Peer, _api: Api) -> None:
        while True:
            peer.request()
            peer.answer(status, body, kind, **headers)

    return script


def streams(*events: Callable[[Api], bytes]) -> Callable[[Peer, Api], None]:
    def script(peer: Peer, api: Api) -> None:
        peer.request()
        peer.send(HEADERS, chunks(opening(api)), *(chunk(made(api)) for made in events), END)

    return script


QUOTED = json.dumps({"error": {"message": f"Wrong key {KEY} in 'Bearer {KEY}'", "type": KEY, "code": KEY}}).encode()
SAYS_IT: dict[str, Callable[[Peer, Api], None]] = {
    "a wrong key": answers(401, QUOTED, x_request_id=KEY, request_id=KEY, www_authenticate=KEY),
    "a wrong model": answers(404, QUOTED),
    "a limit": answers(429, QUOTED, retry_after=KEY, x_ratelimit_reset_requests=KEY),
    "a page": answers(502, f"<html>{KEY}</html>".encode(), "text/html"),
    "plain words": answers(400, KEY.encode(), "text/plain"),
    "half JSON": answers(400, b'{"error": {"message": "' + KEY.encode()),
    "a type of its own": answers(200, KEY.encode(), f"text/{KEY}"),
    "half an answer": answers(200, b'{"id": "' + KEY.encode()),
    "a redirect": answers(307, b"", location=f"http://{KEY}.invalid/v1?key={KEY}"),
    "a redirect in a circle": answers(307, b"", location=f"/v1?key={KEY}"),
    "a nonsensical head": lambda peer, _: (peer.request(), peer.send(f"HTTP/1.1 {KEY}\r\n\r\n".encode()))[0],
    "an error in a stream": streams(lambda api: event(api, "error", json.loads(QUOTED))),
    "half an event": streams(lambda _: b'data: {"x": "' + KEY.encode() + b"\n\n"),
    "a packed answer that is none": answers(200, KEY.encode(), content_encoding="gzip"),
}


@pytest.mark.parametrize("says", SAYS_IT)
def test_a_failed_turn_has_the_key_nowhere(bench: Bench, api: Api, says: str, caplog: pytest.LogCaptureFixture) -> None:
    for library in ("httpx2", "httpcore2", "openai", "anthropic"):  # as the processes have it
        caplog.set_level(logging.WARNING, library)
    with (
        caplog.at_level(logging.DEBUG),
        serving(lambda peer: SAYS_IT[says](peer, api)) as server,
        client(api, server.url) as made,
    ):
        turn_id = bench.submit(model="main:some-model", tools=())
        turn = bench.run(turn_id, bench.runtime(models=lambda _: made))

    assert turn.exit_reason is not None
    stored = repr(bench.everything(turn_id)) + repr(asdict(bench.view(turn_id)))
    assert "model.failed" in stored
    assert KEY not in stored
    assert KEY not in caplog.text
    assert all(KEY not in repr(record.__dict__) for record in caplog.records)


@pytest.mark.parametrize("says", SAYS_IT)
def test_what_an_attempt_raises_has_the_key_nowhere_in_its_traceback(api: Api, says: str) -> None:
    with serving(lambda peer: SAYS_IT[says](peer, api)) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url)

    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown
    assert KEY not in repr(caught.value)
    assert KEY not in repr(caught.value.__dict__)
