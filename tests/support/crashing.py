"""A worker that dies, freezes or loses Postgres's answer at one chosen effect. The code under test has no hook for it:
every statement, model call and tool of the worker passes through `Effects.around`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from orchestration import mixture
from orchestration.ports import ModelRequest, OnText, Reply, Started, StopSignal, TimeLimits
from orchestration.runtime import Runtime
from persistence.errors import DatabaseUnavailable
from persistence.records.message import Role
from persistence.records.usage import Usage
from tests.support.background_model import BackgroundModel
from tests.support.ledger import around_effect
from tests.support.windows import is_for_summary
from tests.support.workbench import Bench, WatchedDatabase

T = TypeVar("T")


class Crash(BaseException):
    """A worker died. No Exception, so that no `except Exception` can survive it."""


class How(StrEnum):
    """What happens at the chosen effect."""

    DIES_BEFORE = "dies before"
    DIES_AFTER = "dies after"
    IS_NOT_HEARD = "is not heard"  # a statement that never reached Postgres
    HEARS_NOTHING = "hears nothing"  # a statement that was committed, and its answer lost
    FREEZES_BEFORE = "freezes before"
    FREEZES_AFTER = "freezes after"

    @property
    def is_before(self) -> bool:
        return self in (How.DIES_BEFORE, How.IS_NOT_HEARD, How.FREEZES_BEFORE)

    @property
    def is_freeze(self) -> bool:
        return self in (How.FREEZES_BEFORE, How.FREEZES_AFTER)


class Effects:
    """The effects of one worker, counted from 1; at `nth` it does `how`. `meanwhile` is what happens in its freeze.

    `watchers` are called before every effect. `what` is the effect at which it happened, None while it has not;
    `bought_after` counts the answers that the worker bought since. A worker freezes only while it `carries` a turn.
    """

    def __init__(
        self, nth: int = 0, how: How = How.DIES_BEFORE, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self.nth = nth
        self.how = how
        self.what: str | None = None
        self.seen: list[str] = []
        self.bought_after = 0
        self.is_dead = False
        self.carries = False
        self.watchers: list[Callable[[str], object]] = []
        self._meanwhile = meanwhile
        self._lock = threading.Lock()

    def around(self, what: str, effect: Callable[[], T]) -> T:
        with self._lock:
            self._refuse_the_dead()
            self.seen.append(what)
            is_chosen = len(self.seen) == self.nth
        for watcher in self.watchers:
            watcher(what)
        if is_chosen and self.how.is_before:
            self._happen(what)
        self.bought_after += self.what is not None and what == "model"
        result = effect()
        if is_chosen and not self.how.is_before:
            self._happen(what)
        self._refuse_the_dead()
        return result

    def _refuse_the_dead(self) -> None:
        if self.is_dead:
            raise Crash("a dead worker does nothing")

    def _happen(self, what: str) -> None:
        match self.how:
            case How.DIES_BEFORE | How.DIES_AFTER:
                self.what = what
                self.is_dead = True
                raise Crash(f"the worker {self.how} effect {self.nth}: {what}")
            case How.IS_NOT_HEARD | How.HEARS_NOTHING if is_statement(what):
                self.what = what
                raise DatabaseUnavailable(f"the worker {self.how}")
            case How.FREEZES_BEFORE | How.FREEZES_AFTER if self.carries:
                self.what = what
                self._meanwhile()
            case _:
                pass


def is_statement(what: str) -> bool:
    return not what.startswith(("model", "tool ", "inside "))


class _CountedModel:
    """The bench's model. It says so when an answer is bought that is stored already."""

    def __init__(self, bench: Bench, effects: Effects) -> None:
        self._bench = bench
        self._effects = effects
        self.name = bench.model.name

    def reply(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply:
        return self._effects.around("model", lambda: self._bought(request, stop, on_text))

    def _bought(self, request: ModelRequest, stop: StopSignal, on_text: OnText) -> Reply:
        self._say_if_stored(request)
        return self._bench.model.reply(request, stop=stop, on_text=on_text)

    def _say_if_stored(self, request: ModelRequest) -> None:
        if mixture.SYSTEM in request.system:
            self._say_if_draft_is_stored(request)
            return
        if not self._effects.bought_after and not is_for_summary(request):
            turn_id = request.messages[-1].turn_id
            stored = answers_stored(self._bench, turn_id)
            # By the number of the newest one: a compression leaves older ones out.
            answers = [m for m in request.messages if m.role is Role.ASSISTANT and m.turn_id == turn_id]
            asked_with = answers[-1].iteration if answers else 0
            if stored != asked_with:
                self._bench.wrong.append(f"answer {asked_with + 1} is bought although {stored} are stored")

    def _say_if_draft_is_stored(self, request: ModelRequest) -> None:
        turn_id = request.messages[-1].turn_id
        sql = """SELECT count(*) AS n FROM messages
                 WHERE turn_id = %(id)s AND iteration = %(iteration)s AND wire ->> 'draft' = %(model)s"""
        params = {
            "id": turn_id,
            "iteration": answers_stored(self._bench, turn_id),
            "model": f"scripted:{request.model}",
        }
        is_stored = bool(self._bench.database.one(sql, params)["n"])
        # A thread of a worker that died meanwhile may look when another worker has stored it.
        if is_stored and not self._effects.bought_after and not self._effects.is_dead:
            self._bench.wrong.append(f"the draft of {request.model} is bought although it is stored")


class _CountedBackground(_CountedModel):
    """A bench's model that answers in the background. It says so when an answer is started while one is pending."""

    is_background = True

    def __init__(self, bench: Bench, model: BackgroundModel, effects: Effects) -> None:
        super().__init__(bench, effects)
        self._model = model

    def start(self, request: ModelRequest, *, stop: StopSignal, on_text: OnText) -> Reply | Started:
        return self._effects.around("model", lambda: self._started(request, stop, on_text))

    def fetch(self, started: Started, *, limits: TimeLimits, stop: StopSignal, on_text: OnText) -> Reply | Started:
        return self._effects.around(
            "model look", lambda: self._model.fetch(started, limits=limits, stop=stop, on_text=on_text)
        )

    def interrupt(self, started: Started) -> Usage | None:
        return self._effects.around("model interrupt", lambda: self._model.interrupt(started))

    def _started(self, request: ModelRequest, stop: StopSignal, on_text: OnText) -> Reply | Started:
        turn_id = request.messages[-1].turn_id
        if not self._effects.bought_after and self._bench.row(turn_id)["pending"] is not None:
            self._bench.wrong.append("an answer is started while another is pending")
        self._say_if_stored(request)
        return self._model.start(request, stop=stop, on_text=on_text)


def answers_stored(bench: Bench, turn_id: UUID) -> int:
    sql = "SELECT count(*) AS n FROM messages WHERE turn_id = %(id)s AND role = 'assistant'"
    return bench.database.one(sql, {"id": turn_id})["n"]


def worker(bench: Bench, effects: Effects, name: str, **changes: Any) -> Runtime:
    """A runtime whose every effect is one of `effects`; the history is looked at after each of its statements."""

    def around(sql: str, statement: Callable[[], T]) -> T:
        return effects.around(sql, lambda: bench.and_look(sql, statement))

    made: dict[str, Any] = {
        "database": WatchedDatabase(bench.database, around),
        "models": lambda _name: _counted(bench, effects),
    }
    return bench.runtime(name, **(made | changes))


def _counted(bench: Bench, effects: Effects) -> _CountedModel:
    model = bench.model
    return (
        _CountedBackground(bench, model, effects)
        if isinstance(model, BackgroundModel)
        else _CountedModel(bench, effects)
    )


def carry(effects: Effects, work: Callable[[], object]) -> bool:
    """Do `work`, its tools seen too. False when the worker did not live to its end, or could not reach Postgres."""
    token = around_effect.set(effects.around)
    try:
        with suppress(Crash, DatabaseUnavailable):
            work()
            return True
        return False
    finally:
        around_effect.reset(token)
