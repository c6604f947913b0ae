"""One fault test: the turns it starts, what it lets wait, and what it reads of them afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from celery.result import AsyncResult

from ops.dev.scripted_provider.book import Recorded
from ops.dev.scripted_provider.script import Gate, Policy, Stage, Step
from persistence import events, views
from persistence.events import StoredEvent
from persistence.records.message import Call, Result
from persistence.records.status import ExitReason, TurnStatus
from persistence.views import MessageView, TurnView
from tests.faults.yard import Yard
from tests.support.processes import Process, eventually
from tests.support.provider import ProviderGate
from workers.identity import Identity

# In every prompt: it may be in Postgres and in requests, nowhere else.
CANARY = "CANARY-PROMPT-7f3a"


@dataclass(frozen=True)
class Started:
    """A turn of this test."""

    bench: Bench
    id: UUID
    session_id: UUID
    script: str

    @property
    def view(self) -> TurnView:
        return views.turn(self.bench.yard.database, self.id)

    @property
    def requests(self) -> list[Recorded]:
        """What the provider was asked for it."""
        return self.bench.yard.provider.requests(self.script)

    @property
    def messages(self) -> list[MessageView]:
        return [m for m in views.history(self.bench.yard.database, self.id) if m.message.turn_id == self.id]

    @property
    def calls(self) -> list[Call]:
        return [b for m in self.messages for b in m.message.content if isinstance(b, Call)]

    @property
    def results(self) -> list[Result]:
        return [b for m in self.messages for b in m.message.content if isinstance(b, Result)]

    @property
    def events(self) -> list[StoredEvent]:
        return list(events.read(self.bench.yard.database, self.id))

    @property
    def result(self) -> AsyncResult[Any]:
        return AsyncResult(str(self.id), app=self.bench.yard.app)

    def event_types(self) -> list[str]:
        return [e.type for e in self.events]

    def starts(self, tool: str) -> int:
        """How often a tool was started for it."""
        return len(self.ledger(tool, "start"))

    def ledger(self, tool: str, what: str) -> list[dict[str, Any]]:
        lines = self.bench.yard.ledger_lines()
        return [x for x in lines if (x["turn"], x["tool"], x["what"]) == (str(self.id), tool, what)]

    def wait_for_start(self, tool: str, count: int = 1, *, within_s: float = 20.0) -> None:
        eventually(
            lambda: self.starts(tool) >= count, f"{tool} was started {count} times for {self.id}", within_s=within_s
        )

    def wait_for_requests(self, count: int, *, within_s: float = 20.0) -> list[Recorded]:
        eventually(lambda: len(self.requests) >= count, f"{count} requests for {self.id}", within_s=within_s)
        return self.requests

    def wait_until(self, status: TurnStatus, *, within_s: float = 20.0) -> TurnView:
        def look() -> TurnView | None:
            view = self.view
            return view if view.status is status else None

        found = eventually(look, f"{self.id} is {status}", within_s=within_s)
        assert found is not None
        return found

    def wait_for_end(self, *, within_s: float = 30.0) -> TurnView:
        def look() -> TurnView | None:
            view = self.view
            return view if view.status.is_ending else None

        try:
            found = eventually(look, "an ending", within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.view}; {self.event_types()}") from None
        assert found is not None
        return found

    def wait_for_completion(self, *, within_s: float = 30.0) -> TurnView:
        view = self.wait_for_end(within_s=within_s)
        assert view.exit_reason is ExitReason.FINAL_ANSWER, view
        return view

    def wait_for_carrier(self, *, within_s: float = 20.0) -> Process:
        """The worker that carries it, as soon as one of this yard does."""
        return eventually(lambda: self.bench.carrier(self), f"somebody carries {self.id}", within_s=within_s)


class Bench:
    """Names are this test's own: several tests share one provider and one folder of gates."""

    def __init__(self, yard: Yard, name: str) -> None:
        self.yard = yard
        self.name = name
        self.turns: list[Started] = []
        self._closed_gates: set[str] = set()

    def start(
        self,
        *steps: Step,
        policy: Policy | None = None,
        session_id: UUID | None = None,
        key: str | None = None,
        queue: str = "interactive",
        settings: dict[str, str] | None = None,
        provider: str = "main",
        **script: Any,
    ) -> Started:
        """Submit a turn whose model says `steps`; `script` are the other fields of Script."""
        name = f"{self.name}-{len(self.turns)}"
        model = self.script(name, policy or steps, **script)
        submitted = self.yard.client.submit(
            f"{CANARY} {name}",
            session_id=session_id,
            idempotency_key=key,
            queue=queue,
            overrides={"model": f"{provider}:{model}", **(settings or {})},
        )
        return self.adopt(submitted.turn_id, submitted.session_id, name)

    def script(self, name: str, steps: Sequence[Step] | Policy, **how: Any) -> str:
        return self.yard.provider.script(name, steps, **how)

    def adopt(self, turn_id: UUID, session_id: UUID, script: str) -> Started:
        """A turn that was submitted by another way than `start`: it is looked after like the others."""
        started = Started(self, turn_id, session_id, script)
        self.turns.append(started)
        return started

    def adopt_by_id(self, turn_id: str, script: str) -> Started:
        view = views.turn(self.yard.database, UUID(turn_id))
        return self.adopt(view.turn_id, view.session_id, script)

    def gate(self, name: str, at: Stage = "before-byte") -> Gate:
        """A place at which the provider's replies wait, for a step."""
        return Gate(f"{self.name}-{name}", at)

    def at(self, name: str) -> ProviderGate:
        """The same gate, to look at and to open."""
        return self.yard.provider.gate(f"{self.name}-{name}")

    def hold(self, name: str) -> str:
        """A place at which tools wait, for the argument `hold`."""
        return f"{self.name}-{name}"

    def release(self, name: str) -> None:
        (self.yard.gates / self.hold(name)).touch()

    def fifo(self, name: str) -> str:
        """A place at which tools sit in C, for the argument `hold` of `block`."""
        os.mkfifo(self.yard.gates / self.hold(name))
        return self.hold(name)

    def release_fifo(self, name: str) -> None:
        """Let those go on that sit there; fails if nobody does."""
        os.close(os.open(self.yard.gates / self.hold(name), os.O_WRONLY | os.O_NONBLOCK))

    def carrier(self, turn: Started) -> Process | None:
        """The process of this yard that carries the turn, itself or in a child of its own."""
        owner = Identity.parse(turn.view.worker or "")
        if owner is None:
            return None
        for process in self.yard.processes:
            if process.is_alive and owner.pid in (process.pid, *(child.pid for child in process.children())):
                return process
        return None

    def everybody_ends(self, *, within_s: float = 60.0) -> None:
        for turn in self.turns:
            turn.wait_for_end(within_s=within_s)

    def everybody_completes(self, *, within_s: float = 60.0) -> None:
        for turn in self.turns:
            turn.wait_for_completion(within_s=within_s)
