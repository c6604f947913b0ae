"""Perdure itself, in this process: run_turn with the real database, adapter and toolbox, one thread a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from ops.bench.contender import Observe, nobody_observes
from ops.bench.stage import Stage
from ops.bench.work import PROMPT, SYSTEM_PROMPT, Work
from orchestration import loop
from orchestration.ports import CallRun
from orchestration.providers import catalog
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.runtime import Runtime
from orchestration.tools.toolbox import RegistryToolbox
from persistence import submission
from persistence.database import Database, Params, Row
from persistence.records.agent import AgentSettings
from persistence.records.message import Call
from persistence.records.status import ExitReason
from persistence.submission import Request
from workers.rate_guard.guard import RedisRateGuard

PROVIDER = "bench"
TOOLS = ("ops.bench.tools:read_record",)
# As many as a worker has (see workers.wiring).
_CONNECTIONS = 11


class CountingDatabase(Database):
    """Counts the statements that are sent."""

    sent = 0

    def rows(self, sql: str, params: Params | None = None) -> Sequence[Row]:
        self.sent += 1
        return super().rows(sql, params)


class ObservedToolbox(RegistryToolbox):
    """Says when a tool is about to run."""

    observe: Observe = staticmethod(nobody_observes)

    def run(self, names: Sequence[str], calls: Sequence[Call], **how: Any) -> list[CallRun]:
        self.observe()
        return super().run(names, calls, **how)


class Perdure:
    """`fenced` and `statements` count what was sent since the start: fenced ones, and all that are no transaction."""

    def __init__(
        self, stage: Stage, work: Work, workspace: Path, api: Api = Api.OPENAI_CHAT, *, streams: bool = True
    ) -> None:
        self.name = "Perdure" if streams else "Perdure, stream = false"
        self._work = work
        self._database = CountingDatabase(stage.database_url, connections=_CONNECTIONS)
        self._toolbox = ObservedToolbox()
        settings = ProviderSettings(PROVIDER, api, stage.model.openai_url, stream=streams)
        self._client = catalog.connect(settings)
        self._guard = RedisRateGuard(stage.redis_url, {PROVIDER: settings})
        self._runtime = Runtime(
            database=self._database,
            models=lambda _: self._client,
            toolbox=self._toolbox,
            workspace=lambda _: workspace,
            worker="bench",
            guard=self._guard,
        )
        self.fenced = 0

    @property
    def statements(self) -> int:
        return self._database.sent

    def turns(self, count: int, observe: Observe = nobody_observes) -> list[Callable[[], None]]:
        self._toolbox.observe = observe
        agent = agent_for(self._work)
        ids = [submission.submit(self._database, Request(PROMPT, agent)).turn_id for _ in range(count)]
        return [lambda turn_id=turn_id: self._carry(turn_id) for turn_id in ids]

    def close(self) -> None:
        self._guard.close()
        self._client.close()
        self._database.close()

    def _carry(self, turn_id: UUID) -> None:
        turn = loop.run_turn(turn_id, self._runtime)
        assert turn.exit_reason is ExitReason.FINAL_ANSWER, turn.exit_reason
        assert turn.counters.iterations_used == self._work.iterations
        self.fenced += turn.position


def agent_for(work: Work) -> AgentSettings:
    """The agent that does this work, with a budget that is just enough."""
    return AgentSettings(
        name="bench",
        model=f"{PROVIDER}:{work.model}",
        system_prompt=SYSTEM_PROMPT,
        tools=TOOLS,
        iterations=work.iterations,
    )
