"""The server: which script a request follows, which of its answers it gets, and what is written down of it."""

from __future__ import annotations

import asyncio
import sys
import traceback
from dataclasses import dataclass, replace

from ops.dev.scripted_provider.admin import Admin
from ops.dev.scripted_provider.anthropic_shape import AnthropicShape
from ops.dev.scripted_provider.asked import Api, Asked
from ops.dev.scripted_provider.book import Book, Recorded, without_keys
from ops.dev.scripted_provider.gates import Gates
from ops.dev.scripted_provider.http import Connection, HttpRequest
from ops.dev.scripted_provider.openai_shape import OpenAIShape
from ops.dev.scripted_provider.player import Player
from ops.dev.scripted_provider.responses_shape import ResponsesShape
from ops.dev.scripted_provider.responses_store import PATH, ResponsesStore
from ops.dev.scripted_provider.rules import House, Refused, check, check_call_ids, check_size, parse
from ops.dev.scripted_provider.script import Answer, Attempts, Failure, Reply, Script
from ops.dev.scripted_provider.shape import Shape, dumps
from ops.dev.scripted_provider.signatures import Signer

_ROUTES: dict[tuple[str, str], Api] = {
    ("POST", "/v1/chat/completions"): "openai",
    ("POST", PATH): "responses",
    ("POST", "/v1/messages"): "anthropic",
}


@dataclass(frozen=True, slots=True)
class Options:
    """How one server behaves.

    issuer         signs thinking; a server with another issuer refuses it
    token_delay_s  between two deltas of replies that do not say it themselves
    is_lean        for load: requests are neither checked nor kept
    """

    issuer: str = "scripted"
    token_delay_s: float = 0.0
    is_lean: bool = False


class Server:
    """One scripted provider. All but `scripts` is used from its event loop only."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.scripts: dict[str, Script] = {}
        self.book = Book(keeps_requests=not self.options.is_lean)
        self.gates = Gates()
        self._admin = Admin(self.scripts, self.book, self.gates)
        self._connections: set[Connection] = set()
        self._signer = Signer(self.options.issuer)
        responses = ResponsesShape(self._signer)
        self._responses = ResponsesStore(responses, self.gates)
        self._shapes: dict[Api, Shape] = {
            "openai": OpenAIShape(),
            "responses": responses,
            "anthropic": AnthropicShape(self._signer),
        }
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Take requests; returns the address as a URL."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self.handle, self._connections), host, port, backlog=1024
        )
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Take no more requests and drop those that are being answered."""
        if self._listener is not None:
            self._listener.close()
        self._responses.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            await asyncio.sleep(0.001)

    async def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer one request. A script that fails is told to the client and on stderr, and kept as a refusal."""
        is_kept = request.path.startswith(f"{PATH}/")
        api = _ROUTES.get((request.method, request.path))
        if api is None and not is_kept:
            self._admin.handle(request, connection)
            return
        headers = without_keys(request.headers)
        recorded = Recorded(0, api or "responses", "", "", None, None, headers, None, len(request.body))
        self.book.add(recorded)
        request_id = f"req_{self.book.total:08d}"
        try:
            if api is None:
                recorded.script = request.path.split("/")[3]
                self._responses.handle(request, connection)
                recorded.answer = 200
            else:
                asked = self._read(api, request, recorded)
                delay_s = self.options.token_delay_s
                shape = self._shapes[api]
                player = Player(asked, shape, connection, recorded, self.gates, request_id, delay_s)
                await self._play(player, self._answer(asked, recorded))
            recorded.finish()
        except Refused as refused:
            self._refuse(refused, connection, recorded, request_id)
        except asyncio.CancelledError:
            if connection.left_by_client:
                recorded.disconnect()
            raise
        except Exception as error:  # noqa: BLE001 - one bad script must not take the server from the others
            traceback.print_exc(file=sys.stderr)
            self._refuse(Refused("script.failed", repr(error), status=500), connection, recorded, request_id)

    def _read(self, api: Api, request: HttpRequest, recorded: Recorded) -> Asked:
        """The request, checked by the rules of its script. Raises Refused."""
        body = parse(request.body)
        earlier = self._responses.before(body) if api == "responses" else ()
        asked = Asked(api, body, request.body, earlier=earlier)
        recorded.model, recorded.script = asked.model, asked.script
        if self.options.is_lean:
            return asked
        recorded.body = body
        script = self.scripts.get(asked.script, Script([]))
        check_size(api, request.body, script.context_limit, body, max_output=script.max_output)
        knows = self._responses.knows
        house = House(self._signer, script.strict_alternation, script.binds_thinking, earlier, knows)
        recorded.warnings = tuple(check(api, body, request.headers, house))
        if script.call_id_chars is not None:
            check_call_ids(asked, script.call_id_chars)
        return asked

    async def _play(self, player: Player, answer: Answer) -> None:
        """Give an answer; one of the responses API may be made in the background, and is kept."""
        asked = player.asked
        if asked.api != "responses" or not isinstance(answer, Reply):
            await player.play(answer)
        elif asked.body.get("background") and not asked.wants_stream:
            await player.play(self._responses.start(asked, answer))
        else:
            try:
                await player.play(answer)
            finally:  # in the background it goes on when its client has left
                if asked.body.get("background") or answer.broken is None:
                    self._responses.keep(asked, answer)

    def _answer(self, asked: Asked, recorded: Recorded) -> Answer:
        """What this request gets: the fault whose turn it is, else the answer of its step. Raises Refused."""
        script = self.scripts.get(asked.script)
        if script is None:
            raise Refused("script.unknown", f"no script is called {asked.script!r}", status=404, code="model_not_found")
        step = asked.assistant_messages if script.count == "conversation" else asked.assistant_messages_in_turn
        nth, attempt = self.book.count(asked.script, asked.conversation, step)
        recorded.step, recorded.attempt = step, attempt
        fault = script.faults[nth - 1] if nth <= len(script.faults) else None
        if fault is not None:
            return fault
        if callable(script.steps):
            return script.steps(replace(asked, attempt=attempt))
        if step >= len(script.steps) and not (script.repeat_last and script.steps):
            message = f"the script {asked.script!r} has {len(script.steps)} steps and was asked for step {step}"
            raise Refused("script.exhausted", message)
        chosen = script.steps[min(step, len(script.steps) - 1)]
        match chosen:
            case Attempts(answers):
                return answers[min(attempt, len(answers)) - 1]
            case Reply() | Failure():
                return chosen
            case _:
                return chosen(replace(asked, attempt=attempt))

    def _refuse(self, refused: Refused, connection: Connection, recorded: Recorded, request_id: str) -> None:
        recorded.refused, recorded.refusal, recorded.is_limit = refused.rule, refused.message, refused.is_limit
        if recorded.answer is None:
            recorded.answer = refused.status
            shape = self._shapes[recorded.api]
            body = shape.refusal(refused.message, refused.param, refused.code, refused.status, request_id)
            headers = {"content-type": "application/json"} | shape.headers(request_id)
            connection.answer(refused.status, headers, dumps(body).encode())
        else:
            connection.close()
        recorded.finish()
