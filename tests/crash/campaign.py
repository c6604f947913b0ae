"""Carries a turn of some shape while one worker dies, freezes or loses Postgres's answer, and says what came of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from orchestration import history
from orchestration.runtime import Runtime
from persistence import leases, resumption
from persistence.database import Database
from persistence.errors import LeaseHeld, LeaseLost, Refused
from persistence.records.drafts import DRAFT
from persistence.records.message import Block, CallStatus, Message, Result, block_to_json
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from tests.crash.shapes import Shape
from tests.store.outcomes import claim
from tests.support.crashing import Effects, How, carry, worker
from tests.support.ledger import Ledger
from tests.support.standing import wrong_with_ended
from tests.support.workbench import Bench

NO_TIME = timedelta(microseconds=1)
MOST_RIDES = 60


class CampaignFailed(AssertionError):
    """A turn did not come out as it does when nobody dies."""


@dataclass(frozen=True)
class Story:
    """How a turn came out: its ending, what was paid for it, and its whole history."""

    exit_reason: ExitReason | None
    output_text: str | None
    iterations_used: int
    grace_used: bool
    usage: Usage
    cost_usd: Decimal | None
    history: tuple[tuple[str, str, int, tuple[Any, ...]], ...]

    def with_doubts(self, doubted: frozenset[str]) -> Story:
        """The same story, had the outcome of these calls been unknown."""
        told = tuple(
            (role, origin, n, tuple(_doubt(b, doubted) for b in blocks)) for role, origin, n, blocks in self.history
        )
        return replace(self, history=told)


def _doubt(block: dict[str, Any], doubted: frozenset[str]) -> dict[str, Any]:
    if block["type"] != "tool_result" or block["id"] not in doubted:
        return block
    unknown: Block = Result(block["id"], history.UNKNOWN_OUTCOME, CallStatus.UNKNOWN)
    return block_to_json(unknown)


def _drafts_in_one_order(messages: Sequence[Message]) -> list[Message]:
    """Drafts that come side by side come in any order."""
    ordered: list[Message] = []
    for are_drafts, some in groupby(messages, lambda m: m.wire is not None and DRAFT in m.wire):
        found = list(some)
        ordered += sorted(found, key=lambda m: m.text) if are_drafts else found
    return ordered


@dataclass
class Campaign:
    """One turn of one shape, whatever befalls it. `doubted` are the once calls that a lost owner had marked as started."""

    database: Database
    ledger: Ledger
    workspace: Path
    shape: Shape
    doubted: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.ledger.path.unlink(missing_ok=True)
        self.bench = Bench(self.database, self.ledger, self.workspace)
        self.bench.model = self.shape.model(*self.shape.replies(self.bench), faults=self.shape.faults)
        self.turn_id = self.bench.submit(**self.shape.settings)

    def ride(self, effects: Effects, name: str, **changes: Any) -> None:
        """What the world does for the turn, with one worker: wake it, continue its waits, resume it once. Until it has
        ended, or the worker is gone.
        """
        runtime = worker(self.bench, effects, name, **(self.shape.runtime | changes))
        effects.watchers.append(lambda what: self.shape.always(self.bench, runtime, what))
        for _ in range(MOST_RIDES):
            row = self.bench.row(self.turn_id)
            match TurnStatus(row["status"]):
                case TurnStatus.QUEUED:
                    if not self._carry(effects, runtime, alone=row["is_suspect"]):
                        return
                case TurnStatus.WAITING:
                    self.bench.end_wait(self.turn_id)
                case TurnStatus.RUNNING:
                    self.lose_owner()
                case _ if self.shape.resumes_with and not row["resumes"]:
                    if not carry(effects, lambda: self._resume(runtime.database)):
                        return
                case _:
                    return
        raise CampaignFailed("the turn is handed round and does not end")

    def _carry(self, effects: Effects, runtime: Runtime, *, alone: bool) -> bool:
        """Whether the worker is there for more. One that was frozen must have lost the turn, and written nothing more."""
        effects.carries = True
        try:
            return carry(effects, lambda: self.bench.run(self.turn_id, runtime, alone=alone)) and not effects.what
        except (LeaseLost, LeaseHeld):
            if not effects.how.is_freeze or effects.what is None:
                raise
            return False
        finally:
            effects.carries = False

    def _resume(self, database: Database) -> None:
        with suppress(Refused):  # it was resumed, and the answer lost
            resumption.resume(database, self.turn_id, notice=history.RESUMED_NOTICE, iterations=self.shape.resumes_with)

    def lose_owner(self) -> None:
        """The owner is dead, or as good as dead: its lease runs out and the reaper comes by."""
        rows = self.bench.database.rows(
            """SELECT call_id FROM tool_calls c JOIN turns t ON t.id = c.turn_id
               WHERE t.id = %(id)s AND t.status = 'running' AND c.status = 'started'""",
            {"id": self.turn_id},
        )
        self.doubted |= {r["call_id"] for r in rows}
        self.bench.kill_owner(self.turn_id)

    def written(self) -> dict[str, Any]:
        """What is stored of the turn, without what its users may write at any time."""
        found = self.bench.everything(self.turn_id)
        del found["inbox"]
        for column in ("inbox_n", "interrupt_requested_at", "interrupt_reason"):
            del found["turns"][0][column]
        return found

    def story(self) -> Story:
        view = self.bench.view(self.turn_id)
        messages = self.bench.messages(self.turn_id)
        return Story(
            view.exit_reason,
            view.output_text,
            view.iterations_used,
            view.grace_used,
            view.usage,
            view.spending.cost_usd,
            tuple(
                (m.role, m.origin, m.iteration, tuple(block_to_json(b) for b in m.content))
                for m in _drafts_in_one_order(messages)
            ),
        )

    def verdict(self, base: Base, *, bought_twice: int) -> None:
        """Raises CampaignFailed unless the turn came out as it does without a crash, with at most so many calls more."""
        wrong = [*self.bench.wrong, *self.bench.model.refusals]
        wrong += wrong_with_ended(self.bench.database, self.turn_id, self.ledger)
        story, expected = self.story(), base.story.with_doubts(frozenset(self.doubted))
        if self.shape.is_exact:
            differs = [f.name for f in fields(Story) if getattr(story, f.name) != getattr(expected, f.name)]
            wrong += [f"{name}: {getattr(story, name)} is not {getattr(expected, name)}" for name in differs]
        elif story.exit_reason is not expected.exit_reason:
            wrong.append(f"it ended as {story.exit_reason}, not as {expected.exit_reason}")
        if self.bench.model.calls > base.calls + bought_twice:
            wrong.append(f"{self.bench.model.calls} answers were bought, {base.calls} without a crash")
        if wrong:
            raise CampaignFailed("\n".join(dict.fromkeys(wrong)))


@dataclass(frozen=True)
class Base:
    """What a shape is when nobody dies: its story, its effects in order, the number of answers bought."""

    story: Story
    effects: tuple[str, ...]
    calls: int


@dataclass(frozen=True)
class Ground:
    """Where campaigns take place. Every method raises CampaignFailed, with where it happened."""

    database: Database
    ledger: Ledger
    workspace: Path

    def base(self, shape: Shape) -> Base:
        campaign, effects = self._new(shape), Effects()
        campaign.ride(effects, "worker-1")
        base = Base(campaign.story(), tuple(effects.seen), campaign.bench.model.calls)
        campaign.verdict(base, bought_twice=0)
        if base.story.exit_reason is not shape.exit_reason or campaign.doubted:
            raise CampaignFailed(f"{shape} ends as {base.story.exit_reason} although nobody died")
        return base

    def dies(self, shape: Shape, base: Base, *deaths: tuple[int, How], bought_twice: int | None = None) -> Campaign:
        """Worker after worker dies, each at its own nth effect; then one lives. Each death may cost an answer, or so
        many are `bought_twice`.
        """
        with _told(shape, *deaths):
            campaign = self._new(shape)
            for n, (nth, how) in enumerate(deaths, 1):
                campaign.ride(Effects(nth, how), f"worker-{n}")
            campaign.ride(Effects(), "the last worker")
            campaign.verdict(base, bought_twice=len(deaths) * shape.most_lost if bought_twice is None else bought_twice)
            return campaign

    def dies_while_an_answer_is_pending(self, shape: Shape, base: Base) -> None:
        """A worker dies at every look: nothing is bought twice, and nothing is booked as if it might have been."""
        for nth, what in enumerate(base.effects, 1):
            if what == "model look":
                campaign = self.dies(shape, base, (nth, How.DIES_BEFORE), bought_twice=0)
                if campaign.bench.row(campaign.turn_id)["unknown_attempts"]:
                    raise CampaignFailed(f"{shape}: a pending answer was booked as lost at effect {nth}")

    def freezes(self, shape: Shape, base: Base, nth: int, how: How, *, until_the_end: bool) -> None:
        """A worker freezes past its lease, another takes the turn (and carries it to its end), the first wakes up."""
        with _told(shape, (nth, how)):
            campaign = self._new(shape)
            stored: list[Any] = []

            def meanwhile() -> None:
                campaign.lose_owner()
                if until_the_end:
                    campaign.ride(Effects(), "worker-2")
                else:
                    with suppress(LeaseHeld):
                        claim(self.database, campaign.turn_id, "worker-2", alone=True)
                stored.append(campaign.written())

            frozen = Effects(nth, how, meanwhile)
            campaign.ride(frozen, "worker-1", lease=NO_TIME)
            if stored and campaign.written() != stored[0]:
                raise CampaignFailed("a worker that had lost the turn wrote to it")
            if frozen.bought_after > _may_be_bought(frozen):
                raise CampaignFailed("a worker that had lost the turn bought an answer")
            campaign.ride(Effects(), "the last worker")
            campaign.verdict(base, bought_twice=1 + frozen.bought_after)

    def is_watched_by_the_reaper(self, shape: Shape, base: Base) -> None:
        """The reaper comes by before every effect; nobody dies, so it takes nothing."""
        with _told(shape):
            campaign, effects = self._new(shape), Effects()
            effects.watchers.append(lambda _what: leases.take_back_expired(self.database, limit=10_000))
            campaign.ride(effects, "worker-1")
            campaign.verdict(base, bought_twice=0)
            if campaign.bench.view(campaign.turn_id).crash_count:
                raise CampaignFailed("a crash was counted although nobody died")

    def _new(self, shape: Shape) -> Campaign:
        return Campaign(self.database, self.ledger, self.workspace, shape)


def _may_be_bought(frozen: Effects) -> int:
    """Nothing can stop a worker that froze between the proof that the turn is its own and the call."""
    is_proof = frozen.what is not None and "WITH mine AS" in frozen.what
    froze_in_between = is_proof if frozen.how is How.FREEZES_AFTER else frozen.what == "model"
    return int(froze_in_between)


@contextmanager
def _told(shape: Shape, *faults: tuple[int, How]) -> Generator[None]:
    """Whatever goes wrong, the error says in which turn and where it was hit."""
    try:
        yield
    except Exception as error:
        where = ", then ".join(f"a worker {how} effect {nth}" for nth, how in faults) or "nobody dies"
        raise CampaignFailed(f"{shape}: {where}:\n{type(error).__name__}: {error}") from error
