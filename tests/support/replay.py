"""A real HTTP server that answers with exchanges recorded from real providers, streams event by event.

The model that a request asks for is the id of the exchange that it gets. The recordings of public test suites stay
outside the repository; the synthetic ones are in tests/data/exchanges.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parents[1]
SYNTHETIC = _TESTS / "data" / "exchanges"
RECORDED = _TESTS.parents[1] / "shared" / "traffic"
ABSENT = "the recorded traffic lies in ../shared/traffic, outside the repository, and is not there"


@dataclass(frozen=True)
class Exchange:
    """One request and its answer, as they went over the wire."""

    id: str
    path: str
    request: Mapping[str, Any]
    status: int
    headers: Mapping[str, str]
    sse: str | None
    body: Any

    @property
    def api(self) -> str:
        """The end of the path that was asked: `chat/completions`, `messages`, or another."""
        parts = self.path.partition("?")[0].strip("/").split("/")
        return "/".join(parts[1:]) if parts[:1] == ["v1"] else "/".join(parts)

    @property
    def payload(self) -> bytes:
        if self.sse is not None:
            return self.sse.encode()
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()

    def events(self) -> list[bytes]:
        """The events of a stream, each with the blank line that ends it."""
        return [event.encode() + b"\n\n" for event in (self.sse or "").replace("\r\n", "\n").split("\n\n") if event]


def read(path: Path) -> Exchange:
    data = json.loads(path.read_text())
    request, response = data["request"], data["response"]
    return Exchange(
        data["id"],
        request["path"],
        request.get("body") or {},
        response["status"],
        response["headers"],
        response.get("sse"),
        response.get("body"),
    )


@cache
def exchanges(folder: Path) -> tuple[Exchange, ...]:
    """Every exchange of a folder, by name; none where the folder is absent."""
    return tuple(read(path) for path in sorted(folder.glob("*.json")))


@contextmanager
def replaying(*recordings: Exchange) -> Iterator[str]:
    """Serve these exchanges, each to who asks for its id as the model or as the last of the path; yields the address."""
    by_id = {exchange.id: exchange for exchange in recordings}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
            self._send(by_id[asked["model"]])

        def do_GET(self) -> None:
            self._send(by_id[self.path.partition("?")[0].rpartition("/")[2]])

        def _send(self, exchange: Exchange) -> None:
            self.send_response(exchange.status)
            for name, value in exchange.headers.items():
                self.send_header(name, value)
            if exchange.sse is None:
                self.send_header("content-length", str(len(exchange.payload)))
                self.end_headers()
                self.wfile.write(exchange.payload)
                return
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in exchange.events():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a test's output is for what failed."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # the client may hang up before it has read all
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
