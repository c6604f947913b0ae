"""One session of three days: hundreds of iterations in a window of 32k tokens, valid for its providers at every request."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ops.dev.scripted_provider.server import Options
from orchestration.ports import ModelClient
from orchestration.providers.settings import Api
from persistence.database import Database
from tests.providers.bench import client
from tests.soak import tools
from tests.soak.world import WINDOW, House, Session, miner
from tests.support.ledger import Ledger
from tests.support.provider import scripted_provider
from tests.support.workbench import Bench

T = TypeVar("T")

# Of the second session: Claude is asked for thinking in every answer (then the newest one in a tool loop must come back
# with its own) and takes no two messages of one role in a row, OpenAI keeps its responses.
_HARD = "hard"
_MORE: dict[Api, dict[str, Any]] = {
    Api.ANTHROPIC: {"extra_body": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
    Api.OPENAI_RESPONSES: {"extra_body": {"store": True}},
}

# The first binds thinking to its prefix, as the newest Claude models do; each refuses the signatures of the others.
_HOUSES: tuple[tuple[str, Api, str, bool], ...] = (
    ("claude", Api.ANTHROPIC, "claude-fable-5-1", True),
    ("responses", Api.OPENAI_RESPONSES, "gpt-6", True),
    ("chat", Api.OPENAI_CHAT, "local", False),
)


class QuietBench(Bench):
    """A bench that looks at a session once a turn: to look after each statement would be most of the work."""

    def and_look(self, sql: str, statement: Callable[[], T]) -> T:  # noqa: ARG002
        return statement()


@pytest.fixture
def session(pool: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Session]:
    seed = str(request.param)
    bench = QuietBench(pool, Ledger(tmp_path / "ledger"), tmp_path, runs_tools=False)
    with ExitStack() as stack:
        houses: list[House] = []
        clients: dict[str, ModelClient] = {}
        for index, (name, api, model, thinks) in enumerate(_HOUSES):
            server = stack.enter_context(scripted_provider(Options(issuer=name)))
            policy = miner(seed, index, thinks=thinks, houses=len(_HOUSES), sites=20_000)
            is_claude = api is Api.ANTHROPIC
            name_of_model = server.script(
                model,
                policy,
                context_limit=WINDOW,
                max_output=4_000,
                binds_thinking=is_claude,
                strict_alternation=is_claude and seed == _HARD,
            )
            houses.append(House(name, server, name_of_model))
            more = _MORE.get(api, {}) if seed == _HARD else {}
            clients[name] = stack.enter_context(client(api, server.url, name=name, key=server.api_key, **more))
        yield Session(bench, houses, clients.__getitem__, seed)


@pytest.mark.timeout(170)
@pytest.mark.parametrize("session", ["first", _HARD], indirect=True)
def test_a_day_of_a_session_is_valid_at_every_request(session: Session) -> None:
    session.live(200)

    _check(session, compressions=12)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("session", ["three days", _HARD], indirect=True)
def test_three_days_of_a_session_are_valid_at_every_request_and_cost_the_same(session: Session) -> None:
    session.live(2_000)

    _report(session)
    _check(session, compressions=80)


def _check(session: Session, *, compressions: int) -> None:
    assert not session.wrong, "\n".join(session.wrong[:20])
    assert session.told["refused"] == 0
    assert session.told["compression.done"] >= compressions
    assert all(session.told[what] for what in ("deaths", "steer.applied", "resumes", "model.fallback", "interrupts"))
    assert max(tools.posted.values()) == 1, "a call that must not run twice did"
    session.bench.check()


def _report(session: Session) -> None:
    """For `pytest -s`: what befell the session, and what its iterations cost from the first to the last."""
    print(f"\n{dict(session.told)}")
    print("iterations  requests  ms/iteration  CPU ms  kB/iteration  largest request, tokens")
    before = 0
    for block in session.blocks:
        if block.iterations:
            per = block.iterations
            grown, before = block.stored - before, block.stored
            print(
                f"{per:10} {block.requests:9} {block.seconds / per * 1000:13.1f} {block.cpu_s / per * 1000:7.1f}"
                f" {grown / per / 1000:13.1f}"
                f" {block.largest // 4:15}"
            )
