"""Long sessions over HTTP, on a provider that refuses what the real ones refuse, with the signatures of thinking."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, Call, Redacted, Reply, Text, Thinking, reply
from orchestration import compression
from orchestration.ports import ModelClient
from orchestration.providers.settings import Api
from persistence.database import Database
from persistence.errors import LeaseHeld
from persistence.records.status import ExitReason
from tests.providers.bench import client
from tests.support.crashing import Effects, How, carry, worker
from tests.support.ledger import Ledger
from tests.support.provider import ScriptedProvider, provider, thinking_by_calls
from tests.support.windows import TOOLS
from tests.support.workbench import Bench

__all__ = ["provider"]

WINDOW = 32_000
_ASKED = re.compile(r"Read leaves (\d+) to (\d+)\.")
_READ = re.compile(r"leaf (\d+):")

Models = Callable[[str], ModelClient]


def reader(*, chars: int, thinks: bool = False, at_once: int = 1) -> Callable[[Asked], Answer]:
    """Reads leaf after leaf as it was asked to, knowing nothing but what the request says."""

    def policy(asked: Asked) -> Answer:
        if asked.system == compression.SYSTEM:
            read = max(map(int, _READ.findall(asked.messages[-1].text)), default=0)
            return reply(f"## Done\n1. Leaves were read, the last was {read}.\n" + "It said so. " * 20)
        first, last = map(int, _ASKED.findall("\n".join(m.text for m in asked.messages if m.role == "user"))[-1])
        results = asked.messages[-1].results
        n = max((r.call.arguments["n"] for r in results), default=first - 1)
        thought = (Thinking(f"After leaf {n}."), Redacted(f"hidden {n}")) if thinks else ()
        if n >= last:
            return Reply((*thought, Text(f"Read up to {n}.")))
        wanted = range(n + 1, min(n + at_once, last) + 1)
        size = random.Random(n).choice([chars // 4, chars, chars * 2])
        calls = tuple(Call("leaf", f'{{"n":{k},"chars":{size}}}') for k in wanted)
        return Reply((*thought, *calls))

    return policy


class Session:
    """Turns of one session, each carried to its end through whatever befalls its workers."""

    def __init__(self, bench: Bench, models: Models) -> None:
        self.bench = bench
        self.models = models
        self.id: UUID | None = None
        self._workers = 0

    def turn(self, prompt: str, **settings: Any) -> UUID:
        defaults: dict[str, Any] = {"tools": (TOOLS,), "context_window": WINDOW, "max_output_tokens": 4_000}
        turn_id = self.bench.submit(prompt, session_id=self.id, **(defaults | settings))
        self.id = self.bench.view(turn_id).session_id
        return turn_id

    def carry(self, turn_id: UUID, *, dies_at: int = 0, **runtime: Any) -> None:
        """Until it ends: the first worker dies at its nth effect, if it is given one."""
        while not self.bench.view(turn_id).status.is_ending:
            effects = Effects(dies_at, How.DIES_AFTER)
            self._workers += 1
            one = worker(self.bench, effects, f"worker-{self._workers}", models=self.models, **runtime)
            carry(effects, lambda one=one: self._carry(turn_id, one))
            dies_at = 0
            self.bench.kill_owner(turn_id)

    def _carry(self, turn_id: UUID, runtime: Any) -> None:
        try:
            self.bench.run(turn_id, runtime, alone=bool(self.bench.row(turn_id)["is_suspect"]))
        except LeaseHeld:
            return


@pytest.fixture
def bench(pool: Database, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    """A bench whose tools read alone, and may do so again: no ledger counts them."""
    made = Bench(pool, ledger, tmp_path, runs_tools=False)
    yield made
    made.check()


@pytest.fixture
def connected(provider: ScriptedProvider) -> Generator[Callable[..., Models]]:
    """Clients of the provider by name, each for its own protocol."""
    with ExitStack() as stack:

        def connect(apis: dict[str, Api], **more: Any) -> Models:
            made = {
                name: stack.enter_context(client(api, provider.url, name=name, key=provider.api_key, **more))
                for name, api in apis.items()
            }
            return made.__getitem__

        yield connect


def number_of(bench: Bench, turn_id: UUID, event: str) -> int:
    return bench.events(turn_id).count(event)


@pytest.mark.parametrize("restarts", [False, True], ids=["one worker", "another worker at every step"])
def test_thinking_comes_back_to_the_byte_for_as_long_as_its_message_is_kept(
    bench: Bench, provider: ScriptedProvider, connected: Callable[..., Models], restarts: bool
) -> None:
    """AC-02. Thinking is required at the start of the newest answer in a tool loop, too."""
    model = provider.script("signing", reader(chars=3_000, thinks=True, at_once=2), context_limit=WINDOW)
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    session = Session(bench, connected({"main": Api.ANTHROPIC}, extra_body=thinking))

    turn_id = session.turn("Read leaves 1 to 40.", model=f"main:{model}")
    session.carry(turn_id, dies_at=25, **({"slice_": timedelta(0)} if restarts else {}))

    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert number_of(bench, turn_id, "compression.done") >= 2
    assert provider.refusals(limits=True) == []
    seen = thinking_by_calls(provider.requests("signing"))
    assert len(seen) == 20
    assert all(len(forms) == 1 and all(forms) for forms in seen.values())


def test_where_thinking_is_bound_to_its_prefix_no_request_is_refused_after_a_compression(
    bench: Bench, provider: ScriptedProvider, connected: Callable[..., Models]
) -> None:
    model = provider.script(
        "claude-fable-5-1", reader(chars=3_000, thinks=True, at_once=2), context_limit=WINDOW, binds_thinking=True
    )
    session = Session(bench, connected({"main": Api.ANTHROPIC}))

    turn_id = session.turn("Read leaves 1 to 40.", model=f"main:{model}")
    session.carry(turn_id, dies_at=25, slice_=timedelta(0))

    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert number_of(bench, turn_id, "compression.done") >= 2
    assert provider.refusals(limits=True) == []
    # What was thought goes back until a compression changes what stood before it, for some at once.
    sent = [forms for forms in thinking_by_calls(provider.requests("claude-fable-5-1")).values() if any(forms)]
    assert len(sent) == 20 - number_of(bench, turn_id, "compression.done")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("api", "turns"), [(Api.ANTHROPIC, 10), (Api.OPENAI_CHAT, 5), (Api.OPENAI_RESPONSES, 5)])
def test_a_session_of_two_hundred_iterations_is_valid_at_every_request(
    bench: Bench, provider: ScriptedProvider, connected: Callable[..., Models], api: Api, turns: int
) -> None:
    """Turns of twenty iterations in a window of 32k tokens. In most a worker dies, in some every step has another
    worker, in one of five another protocol goes on.
    """
    other = Api.ANTHROPIC if api is not Api.ANTHROPIC else Api.OPENAI_CHAT
    thinks = api is not Api.OPENAI_CHAT
    model = provider.script("long", reader(chars=1_500, thinks=thinks), context_limit=WINDOW)
    second = provider.script("second", reader(chars=1_500), context_limit=WINDOW)
    session = Session(bench, connected({"main": api, "other": other}))
    choose = random.Random(f"two hundred iterations of {api}")

    compressed = 0
    for k in range(turns):
        name = f"other:{second}" if k % 5 == 3 else f"main:{model}"
        turn_id = session.turn(f"Read leaves {k * 19 + 1} to {k * 19 + 19}.", model=name)
        session.carry(turn_id, dies_at=choose.randint(5, 80), **({"slice_": timedelta(0)} if k % 5 == 1 else {}))
        assert bench.view(turn_id).output_text == f"Read up to {k * 19 + 19}."
        compressed += number_of(bench, turn_id, "compression.done")

    asked = [r for r in provider.requests() if r.answer == 200]
    assert len(asked) >= turns * 20
    assert compressed >= turns // 2
    assert provider.refusals(limits=True) == []
    assert max(r.size for r in asked) / 4 < WINDOW * 0.75
