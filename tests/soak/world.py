"""Days of one session in a minute: turn after turn through crashes, steers, interrupts, outages and compressions."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from ops.dev.scripted_provider.book import Recorded
from orchestration import compression
from orchestration.history import RESUMED_NOTICE
from orchestration.ports import ModelClient
from persistence import inbox, resumption
from persistence.errors import LeaseHeld, Refused
from persistence.records.status import ExitReason
from tests.soak.miner import Miner
from tests.support.crashing import Effects, How, carry, worker
from tests.support.provider import ScriptedProvider
from tests.support.standing import wrong_with_session
from tests.support.workbench import Bench

WINDOW = 32_000
TOOLS = ("tests.soak.tools:dig", "tests.soak.tools:post")
# Endings after which the session goes on with a resume; any other but the final answer is a fault.
RESUMABLE = (
    ExitReason.BUDGET_EXHAUSTED,
    ExitReason.INTERRUPTED_BY_USER,
    ExitReason.INVALID_TOOL_CALL,
    ExitReason.WORKER_LOST,
)
_DEATHS = (How.DIES_BEFORE, How.DIES_AFTER, How.HEARS_NOTHING, How.IS_NOT_HEARD)


@dataclass(frozen=True)
class House:
    """One provider: its server, and the name of its model there."""

    name: str
    server: ScriptedProvider
    model: str

    @property
    def full_model(self) -> str:
        return f"{self.name}:{self.model}"


@dataclass
class Block:
    """What a stretch of iterations came to. The providers and their checks are in this process too."""

    iterations: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    requests: int = 0
    largest: int = 0
    stored: int = 0


@dataclass
class Session:
    """One session, carried to its end. `told` counts what befell it, `wrong` says what was wrong at the end of a turn."""

    bench: Bench
    houses: Sequence[House]
    models: Callable[[str], ModelClient]
    seed: str
    id: UUID | None = None
    told: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=lambda: [Block()])
    _workers: int = 0
    _site: int = 0

    def live(self, iterations: int, *, block: int = 100) -> None:
        """Turn after turn, until so many iterations are through."""
        choose = random.Random(self.seed)
        while self.told["iterations"] < iterations:
            began, cpu_began = time.perf_counter(), time.process_time()
            used = self._turn(choose)
            current = self.blocks[-1]
            current.seconds += time.perf_counter() - began
            current.cpu_s += time.process_time() - cpu_began
            current.iterations += used
            self._look(current)
            if current.iterations >= block:
                self.blocks.append(Block())

    def _turn(self, choose: random.Random) -> int:
        first = self._site + 1
        self._site += choose.choice((1, 10, 25, 40))
        k = self.told["turns"]
        chain = [self.houses[(k + n) % len(self.houses)].full_model for n in range(len(self.houses))]
        turn_id = self.bench.submit(
            f"Dig at sites {first} to {self._site}.",
            session_id=self.id,
            model=chain[0],
            fallbacks=tuple(chain[1:]),
            tools=TOOLS,
            iterations=choose.choice((4, 90)),
            context_window=WINDOW,
            max_output_tokens=4_000,
            result_chars=20_000,
            max_crashes=5,
        )
        self.id = self.bench.view(turn_id).session_id
        self.told["turns"] += 1
        while True:
            self._carry(turn_id, choose)
            view = self.bench.view(turn_id)
            self.told[f"ended {view.exit_reason}"] += 1
            if view.exit_reason is ExitReason.FINAL_ANSWER:
                break
            if view.exit_reason not in RESUMABLE:
                self.wrong.append(f"turn {k} ended {view.exit_reason}: {view.message}")
                break
            resumption.resume(self.bench.database, turn_id, notice=RESUMED_NOTICE, iterations=choose.choice((5, 60)))
            self.told["resumes"] += 1
        types = self.bench.events(turn_id)
        for name in ("compression.done", "compression.failed", "model.fallback", "steer.applied", "turn.taken_back"):
            self.told[name] += types.count(name)
        used = self.bench.view(turn_id).iterations_used
        self.told["iterations"] += used
        return used

    def _carry(self, turn_id: UUID, choose: random.Random) -> None:
        """Until it ends, by worker after worker: most of them die, forget everything, or have time for one step."""
        while not self.bench.view(turn_id).status.is_ending:
            self._workers += 1
            effects = Effects(choose.choice((0, choose.randint(1, 25), choose.randint(5, 80))), choose.choice(_DEATHS))
            slice_ = timedelta(0) if choose.random() < 0.2 else timedelta(minutes=5)
            one = worker(self.bench, effects, f"worker-{self._workers}", models=self.models, slice_=slice_)
            effects.watchers.append(lambda _what, one=one: self._befalls(turn_id, one, choose))
            carry(effects, lambda one=one: self._run(turn_id, one))
            self.told["workers"] += 1
            self.told["deaths"] += effects.is_dead
            self.bench.kill_owner(turn_id)
            self.bench.end_wait(turn_id)

    def _run(self, turn_id: UUID, runtime: Any) -> None:
        with suppress(LeaseHeld):
            self.bench.run(turn_id, runtime, alone=bool(self.bench.row(turn_id)["is_suspect"]))

    def _befalls(self, turn_id: UUID, runtime: Any, choose: random.Random) -> None:
        """What people do while the turn lives, at any of its effects."""
        dice = choose.random()
        if dice < 1 / 150:
            with suppress(Refused):
                inbox.steer(
                    self.bench.database, turn_id, f"By the way ({self.told['steers']}): measure in \u2028 ells."
                )
                self.told["steers"] += 1
        elif dice < 1 / 100:
            self.bench.interrupt(turn_id, runtime)
            self.told["interrupts"] += 1

    def _look(self, block: Block) -> None:
        """After a turn: no request was refused, the prefix stood still, the history is well-formed."""
        assert self.id is not None
        requests = [r for house in self.houses for r in house.server.requests()]
        self.wrong += [f"{r.api} refused: {r.refused}: {r.refusal}" for r in requests if r.refused]
        self.wrong += moved_prefixes(requests)
        self.told["refused"] += sum(r.refused is not None for r in requests)
        block.requests += len(requests)
        block.largest = max([block.largest, *(r.size for r in requests)])
        for house in self.houses:
            house.server.clear()
        self.wrong += wrong_with_session(self.bench.database, self.id)
        block.stored = stored_bytes(self.bench, self.id)


def moved_prefixes(requests: Sequence[Recorded]) -> list[str]:
    """Where a request did not begin with all of the one before it of its API, although nothing was compressed between."""
    wrong: list[str] = []
    before: dict[str, Recorded] = {}
    for one in sorted(requests, key=lambda r: r.monotonic):
        if one.body is None or one.answer != 200:
            continue
        if compression.SYSTEM[:60] in str([one.body.get("system"), one.body.get("instructions"), one.messages[0]]):
            before.clear()
            continue
        last = before.get(one.api)
        if last is not None and not _begins_with(_plain(one.messages), _plain(last.messages)):
            wrong.append(f"request {one.n} of {one.api} does not begin with request {last.n}")
        before[one.api] = one
    return wrong


def _begins_with(later: list[Any], earlier: list[Any]) -> bool:
    """A user's words join the results before them in one message, so the last one may have grown."""
    *same, last = earlier
    if later[: len(same)] != same or len(later) < len(earlier):
        return False
    grown = later[len(same)]
    if grown == last:
        return True
    blocks, more = last.get("content"), grown.get("content")
    return isinstance(blocks, list) and isinstance(more, list) and more[: len(blocks)] == blocks


def _plain(value: Any) -> Any:
    """Without the marks of a cache, which move."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k != "cache_control"}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def stored_bytes(bench: Bench, session_id: UUID) -> int:
    """What the session takes in its tables."""
    tables = ("messages", "tool_calls", "model_calls", "events", "compressions")
    of_session = "session_id = %(id)s", "turn_id IN (SELECT id FROM turns WHERE session_id = %(id)s)"
    sums = [
        f"(SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {t} t WHERE {of_session[t not in ('messages', 'compressions')]})"
        for t in tables
    ]
    return int(bench.database.one(f"SELECT {' + '.join(sums)} AS n", {"id": session_id})["n"])


def miner(seed: str, index: int, *, thinks: bool, houses: int, sites: int) -> Miner:
    """The model of the nth provider, down at every tenth stretch of ten sites: never two at the same site."""
    down = frozenset(s for s in range(sites // 10) if s % 10 == index * (10 // houses))
    return Miner(f"{seed} {index}", thinks, down)
