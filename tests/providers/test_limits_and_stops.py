"""A model call ends when its limit or its stop says so, whatever the server does, and the server sees it go."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from orchestration.errors import CallInterrupted, ErrorClass, ModelError
from orchestration.ports import TimeLimits
from orchestration.providers.settings import Api
from orchestration.stopping import Stop
from persistence.records.message import Text
from tests.providers.bench import APIS, ask, ask_once, client, plain
from tests.providers.faults import (
    END,
    HEADERS,
    PATIENCE_S,
    Peer,
    chunk,
    chunks,
    document,
    ending,
    keep_alive,
    opening,
    serving,
    text,
    whole,
)

pytestmark = pytest.mark.parametrize("api", APIS)

# Far above what is promised (0.3 s for a stop), far below the limits that would end the call without one.
SOON_S = 2.0


class Listener(list[str]):
    """Collects the text that streams, and tells somebody of each piece."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, piece: str) -> None:
        super().append(piece)
        self._tell()


def stopped_after(stop: Stop, is_due: Callable[[], bool], call: Callable[[], Any]) -> float:
    """Set `stop` a moment after `is_due`; seconds from then to the call's end, which has to be CallInterrupted."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        wait_until(is_due)
        time.sleep(0.1)  # into the blocking read: a stop before it is the easier case
        started = time.monotonic()
        stop.set()
        error = running.exception(PATIENCE_S)
    assert isinstance(error, CallInterrupted), error
    return time.monotonic() - started


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextmanager
def full_backlog() -> Iterator[str]:
    """A port that answers no SYN any more: its queue of connections is full and nobody accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers: list[socket.socket] = []
        try:
            for _ in range(8):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(address)
                fillers.append(filler)
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            for filler in fillers:
                filler.close()


def secure(peer: Peer, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    peer.sock = context.wrap_socket(peer.sock, server_side=True)


def hang(peer: Peer, _api: Api) -> None:
    peer.request()


def hang_after_headers(peer: Peer, _api: Api) -> None:
    peer.request()
    peer.send(HEADERS)


def hang_in_the_text(peer: Peer, api: Api) -> None:
    peer.request()
    peer.send(HEADERS, chunks([*opening(api), *text(api, "Hel", "lo")[:-1]]))


def only_keep_alives(peer: Peer, api: Api) -> None:
    peer.request()
    peer.send(HEADERS, chunks([*opening(api), *text(api, "Hel", "lo")[:-1]]))
    while True:
        peer.send(chunk(keep_alive(api)))
        time.sleep(0.02)


def only_keep_alives_from_the_start(peer: Peer, api: Api) -> None:
    peer.request()
    peer.send(HEADERS, chunks(opening(api)))
    while True:
        peer.send(chunk(keep_alive(api)))
        time.sleep(0.02)


def tokens_without_end(peer: Peer, api: Api) -> None:
    peer.request()
    peer.send(HEADERS, chunks([*opening(api), *text(api, "x")[:-1]]))
    token = text(api, "x")[0 if api is Api.OPENAI_CHAT else 1]
    while True:
        peer.send(chunk(token))
        time.sleep(0.02)


def a_flood_of_tokens(peer: Peer, api: Api) -> None:
    peer.request()
    peer.send(HEADERS, chunks([*opening(api), *text(api, "x")[:-1]]))
    token = text(api, "x")[0 if api is Api.OPENAI_CHAT else 1]
    while True:
        peer.send(chunk(token) * 500)


def drip(peer: Peer, api: Api) -> None:
    peer.request()
    for byte in b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + document(api):
        peer.send(bytes([byte]))
        time.sleep(0.02)


def drip_the_headers(peer: Peer, _api: Api) -> None:
    peer.request()
    for byte in b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + b"x-more: y\r\n" * 1000:
        peer.send(bytes([byte]))
        time.sleep(0.02)


def never_read(peer: Peer, _api: Api) -> None:
    peer.is_over.wait(PATIENCE_S)


Script = Callable[[Peer, Api], None]
PASSED = {
    "no first token": ErrorClass.FIRST_TOKEN_TIMEOUT,
    "no further token": ErrorClass.IDLE_TIMEOUT,
    "no whole answer": ErrorClass.CALL_TIMEOUT,
}
LIMITED: list[tuple[Script, TimeLimits, str]] = [
    (hang, TimeLimits(9, 0.4, 9, 9), "no first token within 0.4 s"),
    (hang_after_headers, TimeLimits(9, 0.4, 9, 9), "no first token within 0.4 s"),
    (only_keep_alives_from_the_start, TimeLimits(9, 0.4, 9, 9), "no first token within 0.4 s"),
    (drip_the_headers, TimeLimits(9, 0.4, 9, 9), "no first token within 0.4 s"),
    (hang_in_the_text, TimeLimits(9, 9, 0.4, 9), "no further token within 0.4 s"),
    (only_keep_alives, TimeLimits(9, 9, 0.4, 9), "no further token within 0.4 s"),
    (tokens_without_end, TimeLimits(9, 9, 9, 0.6), "no whole answer within 0.6 s"),
    (a_flood_of_tokens, TimeLimits(9, 9, 9, 0.6), "no whole answer within 0.6 s"),
    (drip, TimeLimits(9, 9, 9, 0.6), "no whole answer within 0.6 s"),
    (hang, TimeLimits(9, 9, 9, 0.4), "no whole answer within 0.4 s"),
]


@pytest.mark.parametrize(
    ("script", "limits", "said"), [pytest.param(*row, id=f"{row[0].__name__}: {row[2]}") for row in LIMITED]
)
def test_a_limit_ends_the_call_and_the_server_sees_it(api: Api, script: Script, limits: TimeLimits, said: str) -> None:
    with serving(lambda peer: script(peer, api)) as server, client(api, server.url) as asked:
        started = time.monotonic()
        with pytest.raises(ModelError) as caught:
            ask(asked, limits=limits)
        took = time.monotonic() - started
        assert server.first_peer.saw_disconnect.wait(PATIENCE_S)

    assert caught.value.error is PASSED[said[: said.index(" within")]]
    assert said in str(caught.value)
    assert took < SOON_S


def test_a_request_that_the_server_does_not_read_is_limited_too(api: Api) -> None:
    with serving(lambda peer: never_read(peer, api)) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url, system="x" * 30_000_000, limits=TimeLimits(9, 0.5, 9, 9))

    assert caught.value.error is ErrorClass.FIRST_TOKEN_TIMEOUT


def test_a_connection_that_cannot_be_made_is_given_up_at_its_limit(api: Api) -> None:
    with full_backlog() as url, pytest.raises(ModelError) as caught:
        ask_once(api, url, limits=TimeLimits(0.4, 9, 9, 9))

    assert caught.value.error is ErrorClass.CONNECT_TIMEOUT
    assert "no connection within 0.4 s" in str(caught.value)
    assert not caught.value.may_be_billed


def test_a_tls_handshake_that_hangs_is_given_up_at_the_limit_of_connecting(api: Api) -> None:
    with serving(lambda peer: never_read(peer, api)) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url.replace("http:", "https:"), limits=TimeLimits(0.4, 9, 9, 9))

    assert caught.value.error is ErrorClass.CONNECT_TIMEOUT
    assert "no connection within 0.4 s" in str(caught.value)
    assert not caught.value.may_be_billed


def test_slow_tokens_are_no_reason_to_give_up(api: Api) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks(opening(api)))
        for event in [*text(api, *"Hello there"), *ending(api)]:
            time.sleep(0.06)
            peer.send(chunk(event))
        peer.send(END)

    with serving(script) as server:
        reply = ask_once(api, server.url, limits=TimeLimits(9, 0.6, 0.6, 20))

    assert plain(reply) == (Text("Hello there"),)


STOPPED: list[Script] = [
    hang,
    hang_after_headers,
    hang_in_the_text,
    only_keep_alives,
    tokens_without_end,
    a_flood_of_tokens,
    drip,
]


@pytest.mark.parametrize("script", STOPPED, ids=lambda script: script.__name__)
def test_a_stop_ends_a_blocked_call_at_once_and_the_server_sees_it(api: Api, script: Script) -> None:
    stop = Stop()
    with serving(lambda peer: script(peer, api)) as server, client(api, server.url) as asked:
        took = stopped_after(stop, lambda: bool(server.peers), lambda: ask(asked, stop=stop))
        assert server.first_peer.saw_disconnect.wait(PATIENCE_S)

    assert took < SOON_S


def test_a_stop_ends_a_call_whose_request_is_not_read(api: Api) -> None:
    stop = Stop()
    with serving(lambda peer: never_read(peer, api)) as server:
        long = "x" * 30_000_000
        call = lambda: ask_once(api, server.url, stop=stop, system=long, limits=TimeLimits(9, 30, 30, 30))  # noqa: E731
        took = stopped_after(stop, lambda: bool(server.peers), call)

    assert took < SOON_S


def test_a_stop_ends_a_call_that_is_connecting(api: Api) -> None:
    stop = Stop()
    with full_backlog() as url:
        took = stopped_after(stop, lambda: True, lambda: ask_once(api, url, stop=stop))

    assert took < SOON_S


def test_a_stop_ends_a_call_in_its_tls_handshake(api: Api) -> None:
    stop = Stop()
    with serving(lambda peer: never_read(peer, api)) as server:
        url = server.url.replace("http:", "https:")
        took = stopped_after(stop, lambda: bool(server.peers), lambda: ask_once(api, url, stop=stop))

    assert took < SOON_S


def test_a_stop_ends_a_call_that_looks_up_its_host(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def slow_resolver(*_: Any, **__: Any) -> list[Any]:
        asked.set()
        answered.wait(PATIENCE_S)
        return []

    monkeypatch.setattr("orchestration.providers.connections.look_up.socket.getaddrinfo", slow_resolver)
    stop = Stop()
    took = stopped_after(stop, asked.is_set, lambda: ask_once(api, "http://slow.invalid", stop=stop))
    answered.set()

    assert took < SOON_S


def test_a_look_up_is_limited_by_the_limit_of_connecting(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    resolver = lambda *_, **__: answered.wait(PATIENCE_S) and []  # noqa: E731
    monkeypatch.setattr("orchestration.providers.connections.look_up.socket.getaddrinfo", resolver)

    with pytest.raises(ModelError) as caught:
        ask_once(api, "http://slower.invalid", limits=TimeLimits(0.4, 9, 9, 9))
    answered.set()

    assert caught.value.error is ErrorClass.CONNECT_TIMEOUT
    assert "no connection within 0.4 s" in str(caught.value)
    assert not caught.value.may_be_billed


def test_a_stop_before_the_call_sends_nothing(api: Api) -> None:
    stop = Stop()
    stop.set()
    with serving(lambda peer: peer.send(whole(api))) as server, pytest.raises(CallInterrupted):
        ask_once(api, server.url, stop=stop)

    assert server.peers == []


def test_a_stop_after_the_end_marker_does_not_cost_the_answer(api: Api) -> None:
    stop = Stop()
    marker = ending(api)[:1] if api is Api.OPENAI_CHAT else ending(api)

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(HEADERS, chunks([*opening(api), *text(api, "Hello there"), *marker]))
        stop.wait(PATIENCE_S)

    with serving(script) as server, client(api, server.url) as asked:
        heard = Listener(lambda: threading.Timer(0.2, stop.set).start())
        reply = ask(asked, stop=stop, heard=heard)

    assert plain(reply) == (Text("Hello there"),)


def test_a_stop_touches_no_other_call_of_the_same_client(api: Api) -> None:
    """The connection of the first call has gone to the second one when the first one's stop comes."""
    first, second = Stop(), Stop()
    in_second = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(whole(api))
        peer.request()
        in_second.set()
        first.wait(PATIENCE_S)
        peer.send(whole(api, "Still here"))

    with serving(script) as server, client(api, server.url) as asked, ThreadPoolExecutor(1) as pool:
        pool.submit(ask, asked, stop=first).result(PATIENCE_S)
        running = pool.submit(ask, asked, stop=second)
        assert in_second.wait(PATIENCE_S)
        first.set()
        reply = running.result(PATIENCE_S)

    assert plain(reply) == (Text("Still here"),)
    assert len(server.peers) == 1


def test_two_hundred_calls_run_side_by_side_over_one_client_and_all_stop(api: Api) -> None:
    stop = Stop()
    calls = 200
    with serving(lambda peer: hang_in_the_text(peer, api)) as server, client(api, server.url) as asked:
        before = threading.active_count()
        with ThreadPoolExecutor(calls) as pool:
            limits = TimeLimits(20, 60, 60, 60)
            running = [pool.submit(ask, asked, stop=stop, limits=limits, heard=[]) for _ in range(calls)]
            wait_until(lambda: len(server.peers) == calls)
            ours = threading.active_count() - before - calls  # the server has a thread for each, too
            started = time.monotonic()
            stop.set()
            errors = [one.exception(PATIENCE_S) for one in running]
            took = time.monotonic() - started

    assert all(isinstance(error, CallInterrupted) for error in errors)
    assert took < 2 * SOON_S
    assert ours <= calls, "no call may need a thread beside its own"


def test_a_call_through_the_environments_proxy_is_stopped_as_well(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    lines: list[str] = []

    def script(peer: Peer) -> None:
        lines.append(peer.request()[0])
        peer.send(HEADERS, chunks(opening(api)))

    with serving(script) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        took = stopped_after(stop, lambda: bool(lines), lambda: ask_once(api, "http://provider.invalid", stop=stop))
        assert proxy.first_peer.saw_disconnect.wait(PATIENCE_S)

    assert lines[0].startswith("POST http://provider.invalid/v1/")
    assert took < SOON_S


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key for 127.0.0.1, in one file, signed by itself."""
    if which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    both = folder / "both.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *name]
    subprocess.run(
        [*made, "-days", "2", "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True
    )
    both.write_bytes((folder / "key").read_bytes() + (folder / "crt").read_bytes())
    return both


def test_an_answer_comes_over_tls(api: Api, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    with serving(lambda peer: (secure(peer, certificate), peer.request(), peer.send(whole(api)))[0]) as server:
        reply = ask_once(api, server.url.replace("http:", "https:"))

    assert plain(reply) == (Text("Hello there"),)


def test_a_stop_ends_a_call_that_reads_over_tls(api: Api, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    stop, in_text = Stop(), threading.Event()

    def script(peer: Peer) -> None:
        secure(peer, certificate)
        hang_in_the_text(peer, api)
        in_text.set()

    with serving(script) as server:
        url = server.url.replace("http:", "https:")
        took = stopped_after(stop, in_text.is_set, lambda: ask_once(api, url, stop=stop))
        assert server.first_peer.saw_disconnect.wait(PATIENCE_S)

    assert took < SOON_S


def test_a_certificate_that_nobody_trusts_is_a_tls_error(api: Api, certificate: Path) -> None:
    with serving(lambda peer: secure(peer, certificate)) as server, pytest.raises(ModelError) as caught:
        ask_once(api, server.url.replace("http:", "https:"))

    assert caught.value.error is ErrorClass.TLS
    assert not caught.value.may_be_billed


def test_tls_spoken_to_a_plain_server_is_a_tls_error(api: Api) -> None:
    with (
        serving(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server,
        pytest.raises(ModelError) as caught,
    ):
        ask_once(api, server.url.replace("http:", "https:"))

    assert caught.value.error is ErrorClass.TLS
    assert not caught.value.may_be_billed
