"""What tests and people ask the server about itself: scripts, gates, requests, refusals, CPU time, models."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TypeAlias

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.book import Book
from ops.dev.scripted_provider.gates import Gates
from ops.dev.scripted_provider.http import Connection, HttpRequest
from ops.dev.scripted_provider.script import Script
from ops.dev.scripted_provider.script_json import script_from_json

Route: TypeAlias = Callable[[HttpRequest, str], Json]


class Admin:
    """The routes beside the APIs themselves.

    GET    /v1/models            the scripts, as models of any API
    POST   /_script/NAME         register a script (see script_json); its counts start anew
    POST   /_gate/NAME           open a gate; with {"let": n} only for n requests
    DELETE /_gate/NAME           close it
    GET    /_gate/NAME           {"waiting", "arrived", "open"}
    GET    /_requests?model=     what was asked, oldest first; `model` is a model or a script
    DELETE /_requests            forget it
    GET    /_refusals?limits=1   requests that were refused; `limits` adds those above a context limit
    GET    /_cpu                 {"thread_s", "process_s", "requests"}: CPU time of the event loop and of the process
    """

    def __init__(self, scripts: dict[str, Script], book: Book, gates: Gates) -> None:
        self._scripts = scripts
        self._book = book
        self._gates = gates
        self._routes: dict[tuple[str, str], Route] = {
            ("POST", "_script"): self._script,
            ("POST", "_gate"): self._open_gate,
            ("DELETE", "_gate"): self._close_gate,
            ("GET", "_gate"): self._look_at_gate,
            ("GET", "_requests"): self._requests,
            ("DELETE", "_requests"): self._clear,
            ("GET", "_refusals"): self._refusals,
            ("GET", "_cpu"): self._cpu,
        }

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer one request; 404 for what is not here, 400 with a sentence for a script that cannot be read."""
        if request.method == "GET" and request.path == "/v1/models":
            connection.answer_json(self._models(is_anthropic="anthropic-version" in request.headers))
            return
        head, _, name = request.path.strip("/").partition("/")
        route = self._routes.get((request.method, head))
        if route is None:
            error = {"message": f"Unknown request URL: {request.method} {request.path}", "type": "not_found_error"}
            connection.answer_json({"type": "error", "error": error}, 404)
            return
        try:
            connection.answer_json(route(request, name))
        except (ValueError, TypeError, KeyError) as error:
            connection.answer_json({"error": {"message": f"{type(error).__name__}: {error}"}}, 400)

    def _script(self, request: HttpRequest, name: str) -> Json:
        self._scripts[name] = script_from_json(json.loads(request.body))
        self._book.forget_counts(name)
        return {"script": name}

    def _open_gate(self, request: HttpRequest, name: str) -> Json:
        count = json.loads(request.body)["let"] if request.body else None
        if count is None:
            self._gates.open(name)
        else:
            self._gates.let(name, int(count))
        return self._gates.look(name)

    def _close_gate(self, request: HttpRequest, name: str) -> Json:  # noqa: ARG002 - one signature for all routes
        self._gates.close(name)
        return self._gates.look(name)

    def _look_at_gate(self, request: HttpRequest, name: str) -> Json:  # noqa: ARG002
        return self._gates.look(name)

    def _requests(self, request: HttpRequest, name: str) -> Json:  # noqa: ARG002
        return {"requests": [r.to_json() for r in self._book.requests(request.query.get("model"))]}

    def _clear(self, request: HttpRequest, name: str) -> Json:  # noqa: ARG002
        self._book.clear()
        return {"requests": []}

    def _refusals(self, request: HttpRequest, name: str) -> Json:  # noqa: ARG002
        return {"refusals": [r.to_json() for r in self._book.refusals(limits="limits" in request.query)]}

    def _cpu(self, request: HttpRequest, name: str) -> Json:  # noqa: ARG002
        return {"thread_s": time.thread_time(), "process_s": time.process_time(), "requests": self._book.total}

    def _models(self, *, is_anthropic: bool) -> Json:
        names = [f"scripted-{name}" for name in self._scripts]
        if is_anthropic:
            made = "2026-01-01T00:00:00Z"
            data = [{"type": "model", "id": n, "display_name": n, "created_at": made} for n in names]
            return {"data": data, "has_more": False, "first_id": None, "last_id": None}
        return {
            "object": "list",
            "data": [{"id": n, "object": "model", "created": 1767225600, "owned_by": "scripted"} for n in names],
        }
