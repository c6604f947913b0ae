"""What watchers may hear of a turn: words with the mark of their attempt, progress of tools, and what goes on meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from orchestration.errors import ErrorClass, ModelError
from orchestration.live import Activity, Mark
from orchestration.ports import Delta, ModelRequest, Reply, StopSignal, ToolContext
from orchestration.tools import tool
from persistence import leases
from tests.support.scripted_model import asks, says
from tests.support.workbench import Bench, wait_until

HERE = "tests.loop.test_live"
FAILED = ModelError(ErrorClass.SERVER_ERROR, "it failed", status=500)


@tool(effect="reads")
def tells(ctx: ToolContext) -> str:
    """Says how far it is."""
    ctx.progress("half of it")
    return "all of it"


@dataclass
class Heard:
    """A Live that keeps what it hears."""

    said: list[tuple[Mark, str, bool]] = field(default_factory=list)
    ended: list[Mark] = field(default_factory=list)
    told: list[tuple[UUID, str, str, str]] = field(default_factory=list)
    states: list[Activity] = field(default_factory=list)

    def words(self, mark: Mark) -> _Words:
        return _Words(self, mark)

    def progress(self, turn_id: UUID, call_id: str, tool: str, text: str) -> None:
        self.told.append((turn_id, call_id, tool, text))

    def state(self, turn_id: UUID, activity: Activity) -> None:  # noqa: ARG002 (as the protocol names it)
        self.states.append(activity)


@dataclass
class _Words:
    heard: Heard
    mark: Mark

    def __call__(self, delta: Delta) -> None:
        self.heard.said.append((self.mark, delta.text, delta.is_thinking))

    def end(self) -> None:
        self.heard.ended.append(self.mark)


def test_each_attempt_has_a_mark_of_its_own_and_later_ones_are_higher(bench: Bench) -> None:
    heard = Heard()
    bench.script(asks(("look", "{}"), text="I look."), says("Done."), faults=[FAILED, None, FAILED, FAILED])
    bench.run(bench.submit(), bench.runtime(live=heard))
    told = [(m.iteration, m.attempt) for m in heard.ended]
    assert told == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    places = [(m.fencing_token, m.position) for m in heard.ended]
    assert places == sorted(set(places))
    assert [(m.iteration, text) for m, text, _ in heard.said] == [(1, "I look."), (2, "Done.")]
    assert {m.model for m in heard.ended} == {"scripted:scripted"}
    assert heard.states == [Activity.BACKING_OFF] * 3


def test_the_words_of_another_owner_are_newer(bench: Bench) -> None:
    class Crash(BaseException):
        """The worker dies."""

    def die(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise Crash

    first, second = Heard(), Heard()
    bench.script(die)
    turn_id = bench.submit()
    try:
        bench.run(turn_id, bench.runtime(live=first))
    except Crash:
        bench.kill_owner(turn_id)
    bench.script(says("Done."))
    bench.run(turn_id, bench.runtime("worker-2", live=second))
    (old,), (new,) = first.ended, second.ended
    assert old.iteration == new.iteration == 1
    assert (new.fencing_token, new.position) > (old.fencing_token, old.position)


def test_a_tool_says_how_far_it_is(bench: Bench) -> None:
    heard = Heard()
    bench.script(asks(("tells", "{}")), says("Done."))
    turn_id = bench.submit(tools=(f"{HERE}:tells",))
    bench.run(turn_id, bench.runtime(live=heard))
    assert heard.told == [(turn_id, "c1", "tells", "half of it")]
    bench.leave_unchecked(turn_id)


def test_a_renewal_shows_what_the_turn_does_and_that_it_does_so_no_more(bench: Bench) -> None:
    runtime = bench.runtime()
    bench.script(says("Done."), faults=[FAILED])
    turn_id = bench.submit(retry_base_s=5.0)
    ended = bench.start(turn_id, runtime)
    wait_until(lambda: (found := runtime.registry.get(turn_id)) is not None and found.activity is not None)
    carried = runtime.registry.get(turn_id)
    assert carried is not None
    leases.renew(bench.database, [carried.held], lease=runtime.lease)
    first = bench.row(turn_id)["activity_since"]
    leases.renew(bench.database, [carried.held], lease=runtime.lease)
    assert bench.view(turn_id).activity == "backing_off"
    assert bench.row(turn_id)["activity_since"] == first
    bench.interrupt(turn_id, runtime)
    ended()
    assert bench.row(turn_id)["activity"] is None


def test_a_turn_that_thinks_again_is_shown_so(bench: Bench) -> None:
    runtime = bench.runtime()
    seen: list[str | None] = []

    def answers(_request: ModelRequest, _stop: StopSignal) -> Reply:
        carried = runtime.registry.get(turn_id)
        assert carried is not None
        leases.renew(bench.database, [carried.held], lease=runtime.lease)
        seen.append(bench.view(turn_id).activity)
        return says("Done.")

    bench.script(answers, faults=[FAILED])
    turn_id = bench.submit()
    bench.run(turn_id, runtime)
    assert seen == ["thinking"]
