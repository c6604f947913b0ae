"""A bench for whole turns: a real Postgres, a scripted model, real tools with a ledger, and a look after every statement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import psycopg
import pytest

from orchestration.interrupting import interrupt
from orchestration.loop import run_turn
from orchestration.ports import ModelClient
from orchestration.runtime import Runtime
from orchestration.tools.toolbox import RegistryToolbox
from persistence import events, leases, queue, submission, turns, views
from persistence.database import Database, Params, Row, Transaction
from persistence.records.agent import AgentSettings
from persistence.records.message import Message, Result
from persistence.records.turn import Turn
from persistence.records.usage import Usage
from persistence.views import TurnView
from tests.support import ledger as ledgers
from tests.support.ledger import Ledger
from tests.support.scripted_model import Scripted, ScriptedModel
from tests.support.standing import stored_messages, wrong_with_ended, wrong_with_session

T = TypeVar("T")
Around: TypeAlias = Callable[[str, Callable[[], Any]], Any]

MODEL = "scripted:scripted"
_toolbox = RegistryToolbox()


def price(_provider: str, _model: str, usage: Usage) -> Decimal | None:
    """What anything costs here: all input a dollar a million tokens, what is written to a cache two, output ten."""
    weighed = usage.input_tokens + usage.cache_read_tokens + 2 * usage.cache_write_tokens + 10 * usage.output_tokens
    return Decimal(weighed) / 1_000_000


class WatchedDatabase(Database):
    """The pool of another Database, whose every statement goes through `around`, the sides of a commit too."""

    def __init__(self, inner: Database, around: Around) -> None:
        self.url = inner.url
        self._inner = inner
        self._around = around

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        return self._around(sql, lambda: self._inner.rows(sql, params))

    @contextmanager
    def transaction(self) -> Generator[Transaction, None, None]:
        with self._inner.transaction() as inner:
            yield _WatchedTransaction(inner, self._around)
            self._around("before COMMIT", lambda: None)
        self._around("after COMMIT", lambda: None)


class _WatchedTransaction(Transaction):
    def __init__(self, inner: Transaction, around: Around) -> None:
        self._inner = inner
        self._around = around

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        return self._around(sql, lambda: self._inner.rows(sql, params))


class Bench:
    """Turns of one test. Whatever the turns do, `check` says at the end what was wrong, at any instant of it."""

    def __init__(self, database: Database, ledger: Ledger, workspace: Path, *, runs_tools: bool = True) -> None:
        self.database = database
        self.ledger = ledger
        self.workspace = workspace
        self.model = ScriptedModel()
        self.wrong: list[str] = []
        self.turn_ids: list[UUID] = []
        self._sessions: set[UUID] = set()
        self._runs_tools = runs_tools

    def script(self, *replies: Scripted, faults: Sequence[Exception | None] = ()) -> ScriptedModel:
        self.model = ScriptedModel(*replies, faults=faults)
        return self.model

    def runtime(
        self,
        worker: str = "worker-1",
        *,
        database: Database | None = None,
        models: Callable[[str], ModelClient] | None = None,
        **changes: Any,
    ) -> Runtime:
        """A worker's runtime. The stored history is looked at after each of its statements."""
        watched = database or WatchedDatabase(self.database, self.and_look)
        chosen = models or (lambda _name: self.model)
        defaults: dict[str, Any] = {"toolbox": _toolbox, "workspace": lambda _turn: self.workspace, "prices": price}
        return Runtime(database=watched, models=chosen, worker=worker, **(defaults | changes))

    def agent(self, **settings: Any) -> AgentSettings:
        defaults: dict[str, Any] = {"model": MODEL, "tools": (ledgers.TOOLS,), "retry_base_s": 0.001}
        return AgentSettings("bench", **(defaults | settings))

    def submit(self, prompt: str = "Do it.", *, session_id: UUID | None = None, **settings: Any) -> UUID:
        request = submission.Request(prompt, self.agent(**settings), session_id=session_id)
        return self.adopt(submission.submit(self.database, request).turn_id)

    def adopt(self, turn_id: UUID) -> UUID:
        """A turn of this test, however it was submitted: it is looked after like the others."""
        self._sessions.add(self.view(turn_id).session_id)
        self.turn_ids.append(turn_id)
        return turn_id

    def run(self, turn_id: UUID, runtime: Runtime | None = None, *, alone: bool = False) -> Turn:
        """Carry the turn as a worker does, until it leaves the worker."""
        return run_turn(turn_id, runtime or self.runtime(), alone=alone)

    def start(self, turn_id: UUID, runtime: Runtime | None = None) -> Callable[[], Turn]:
        """Carry the turn in a thread of its own; what is returned waits for it to leave its worker."""
        return in_thread(lambda: self.run(turn_id, runtime))

    def interrupt(self, turn_id: UUID, *runtimes: Runtime) -> None:
        """Interrupt a turn as a user does: the stamp, and the watchers of the workers that may carry it."""
        interrupt(self.database, turn_id)
        for runtime in runtimes:
            carried = runtime.registry.get(turn_id)
            if carried is not None:
                carried.interrupt()

    def fresh(self, *replies: Scripted, prompt: str = "Do it.", **settings: Any) -> Turn:
        """A turn with this script, carried until it leaves the worker."""
        self.script(*replies)
        return self.run(self.submit(prompt, **settings))

    def load(self, turn_id: UUID) -> Turn:
        return turns.load(self.database, turn_id)

    def view(self, turn_id: UUID) -> TurnView:
        return views.turn(self.database, turn_id)

    def row(self, turn_id: UUID) -> Row:
        return self.database.one("SELECT * FROM turns WHERE id = %(id)s", {"id": turn_id})

    def messages(self, turn_id: UUID) -> list[Message]:
        """Every message of the turn's session."""
        return stored_messages(self.database, self.view(turn_id).session_id)

    def events(self, turn_id: UUID) -> list[str]:
        return [e.type for e in events.read(self.database, turn_id)]

    def calls(self, turn_id: UUID) -> dict[str, str]:
        rows = self.database.rows("SELECT call_id, status FROM tool_calls WHERE turn_id = %(id)s", {"id": turn_id})
        return {r["call_id"]: r["status"] for r in rows}

    def everything(self, turn_id: UUID) -> dict[str, list[dict[str, Any]]]:
        """All that is stored of a turn, to be compared with the same at another instant."""
        tables = ("turns", "messages", "tool_calls", "model_calls", "events", "inbox", "deliveries")
        found = {t: f"SELECT * FROM {t} WHERE {'id' if t == 'turns' else 'turn_id'} = %(id)s" for t in tables}
        return {
            t: sorted((dict(r) for r in self.database.rows(sql, {"id": turn_id})), key=str) for t, sql in found.items()
        }

    @contextmanager
    def row_locked(self, turn_id: UUID) -> Generator[psycopg.Connection]:
        """Another connection, in a transaction that holds the turn's row; who waits for it is let go at the end."""
        with psycopg.connect(self.database.url.replace("+psycopg", "")) as other:
            other.execute("SELECT FROM turns WHERE id = %s FOR UPDATE", (turn_id,))
            yield other

    def wait_for_waiters(self, count: int = 1) -> None:
        """Return as soon as `count` connections wait for a lock."""
        sql = (
            "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        wait_until(lambda: self.database.one(sql)["n"] >= count)

    def results(self, turn_id: UUID) -> dict[str, Result]:
        """The answer to every call of the session."""
        return {b.id: b for m in self.messages(turn_id) for b in m.content if isinstance(b, Result)}

    def statuses(self, turn_id: UUID) -> dict[str, str]:
        return {call_id: result.status.value for call_id, result in self.results(turn_id).items()}

    def kill_owner(self, turn_id: UUID) -> None:
        """Let the lease of the turn's owner run out and the reaper come by."""
        sql = "UPDATE turns SET lease_expires_at = now() - interval '1 s' WHERE id = %(id)s AND status = 'running'"
        self.database.rows(sql, {"id": turn_id})
        leases.take_back_expired(self.database, limit=10_000)

    def end_wait(self, turn_id: UUID) -> None:
        """Let the time that a waiting turn waits for come."""
        sql = "UPDATE turns SET resume_at = now() WHERE id = %(id)s AND status = 'waiting'"
        self.database.rows(sql, {"id": turn_id})
        queue.continue_due_waits(self.database, limit=10_000)

    def leave_unchecked(self, turn_id: UUID) -> None:
        """Look no more at a session whose stored history a test has spoiled."""
        self.turn_ids.remove(turn_id)
        self._sessions.discard(self.view(turn_id).session_id)

    def and_look(self, sql: str, statement: Callable[[], T]) -> T:
        """Run a statement, then look at every session: what it left must be well-formed at this very instant."""
        result = statement()
        if sql.lstrip().startswith("SELECT"):
            return result
        for session_id in list(self._sessions):
            self.wrong += wrong_with_session(self.database, session_id)
        return result

    def check(self) -> None:
        """The standing checks over all turns of the test that have ended."""
        ledger = self.ledger if self._runs_tools else None
        for turn_id in dict.fromkeys(self.turn_ids):
            if self.view(turn_id).status.is_ending:
                self.wrong += [f"turn {turn_id}: {w}" for w in wrong_with_ended(self.database, turn_id, ledger)]
        self.wrong += [f"a request would be refused: {refusal}" for refusal in self.model.refusals]
        assert not self.wrong, "\n".join(dict.fromkeys(self.wrong))


def wait_until(holds: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "what the test waits for did not come about"
        time.sleep(0.002)


def in_thread(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work` in a thread; the returned function waits for its result, and raises what it raised."""
    results: list[T] = []
    errors: list[BaseException] = []

    def carry() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 (raised again where the result is fetched)
            errors.append(error)

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()

    def fetch() -> T:
        thread.join(timeout=30)
        assert not thread.is_alive(), "the work did not end in 30 s"
        if errors:
            raise errors[0]
        return results[0]

    return fetch


@pytest.fixture(scope="session")
def pool(database_url: str) -> Generator[Database]:
    """One pool for all tests of this process."""
    database = Database(database_url, name="bench")
    yield database
    database.close()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(ledgers.VARIABLE, str(path))
    return Ledger(path)


@pytest.fixture
def bench(pool: Database, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    """A bench whose standing checks hold when the test is over."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    made = Bench(pool, ledger, workspace)
    yield made
    made.check()
