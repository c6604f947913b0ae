"""From the lines of a file to the items of a batch, and into Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import BinaryIO

from orchestration.errors import ConfigError, PerdureError
from persistence import batches, submission
from persistence.database import Database
from persistence.records.agent import AgentSettings
from persistence.records.batch import Batch, BatchStatus, Item, Order
from persistence.submission import DEFAULT_TENANT
from workers import asked_agent, config
from workers.batching import input_file
from workers.batching.input_file import Keys, Line, Problem
from workers.config import DEFAULT_AGENT, Config
from workers.config_file import as_written
from workers.overrides import OfItem

# Items in one transaction: enough that the round trips do not count, few enough that a kill loses little.
_AT_ONCE = 500


class BadBatch(PerdureError):
    """A file that no batch can be made from; `problems` are all that were found, in the order of its lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(str(problems[0]))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a file is to become a batch. `overrides` are settings for every item, as `--set` has them."""

    agent: str = DEFAULT_AGENT
    overrides: Mapping[str, str] | None = None
    keys: Keys | None = None
    name: str | None = None
    key: str | None = None
    is_again: bool = False
    priority: int = 0
    max_tokens: int | None = None
    max_cost_usd: Decimal | None = None


def submit(database: Database, configured: Config, file: BinaryIO, wanted: Wanted) -> Batch:
    """Store a batch as a whole and let it start, or join the one that these very items have become already.

    May be called again with the same file after whatever happened to an earlier call: it goes on where that stopped.

    Raises BadBatch, before anything is stored; DuplicateBatch, Refused, NotFound, ConfigError, DatabaseUnavailable.
    """
    order = read(database, configured, file, wanted)
    while True:
        batch = batches.submitted(database, order)
        if batch.status is not BatchStatus.FILLING or _fill(database, batch, order):
            return batch
        order = replace(order, is_again=False)  # another run was asked for once, and may have ended by now


def read(database: Database, configured: Config, file: BinaryIO, wanted: Wanted) -> Order:
    """The file as an order of items. Raises BadBatch with everything that is wrong with it."""
    agents = _Agents(configured, wanted)
    lines, problems = input_file.read(file, wanted.keys)
    agents.check_common(lines)
    items: list[Item] = []
    for line in lines:
        try:
            agent, agent_id = agents.settings_of(line.agent, line.settings)
        except PerdureError as error:
            problems.append(Problem(line.n, str(error)))
        else:
            items.append(Item(line.n, line.custom_id, line.content, agent, agent_id, line.session_id))
    order = Order(
        items,
        wanted.agent,
        DEFAULT_TENANT,
        name=wanted.name,
        key=wanted.key,
        is_again=wanted.is_again,
        priority=wanted.priority,
        max_tokens=wanted.max_tokens,
        max_cost_usd=wanted.max_cost_usd,
    )
    problems += _lost_sessions(database, order, lines)
    if not lines and not problems:
        problems.append(Problem(1, "the file holds no items"))
    if problems:
        raise BadBatch(sorted(problems, key=lambda problem: problem.line))
    return order


def _fill(database: Database, batch: Batch, order: Order) -> bool:
    """Store what is missing, then let the batch start; False when somebody else has done so, or has interrupted it."""
    missing = batches.missing(database, batch.id, order.items)
    for part in _parts(missing):
        if not batches.add(database, batch.id, order, part):
            return False
    return batches.seal(database, batch.id, items=len(order.items))


def _lost_sessions(database: Database, order: Order, lines: Sequence[Line]) -> Iterator[Problem]:
    if not any(line.session_id for line in lines):
        return
    unknown = batches.unknown_sessions(database, order)
    for line in lines:
        if line.session_id in unknown:
            yield Problem(line.n, f"there is no session {line.session_id}; leave it out to start a new one")


class _Agents:
    """The settings of items, looked up and checked once for each agent and each set of settings."""

    def __init__(self, configured: Config, wanted: Wanted) -> None:
        self._config, self._wanted = configured, wanted
        self._known: dict[str, tuple[AgentSettings, str]] = {}

    def check_common(self, lines: Sequence[Line]) -> None:
        """What is wrong for many items as one sentence, not one for each line; nothing that no item needs.

        Raises PerdureError.
        """
        if any(line.agent is None and not line.settings for line in lines):
            self.settings_of(None, {})
        elif any(line.agent is None for line in lines):
            config.resolve_agent(self._config, self._wanted.agent, self._wanted.overrides)

    def settings_of(self, agent: str | None, settings: Mapping[str, object]) -> tuple[AgentSettings, str]:
        """The agent of an item and its digest. Raises PerdureError with a sentence."""
        asked = json.dumps([agent, settings], sort_keys=True)
        if asked not in self._known:
            own = {key: OfItem(as_written(value)) for key, value in settings.items()}
            overrides = {**(self._wanted.overrides or {}), **own}
            resolved = asked_agent.resolve(self._config, agent or self._wanted.agent, overrides)
            self._check_caps(resolved)
            self._known[asked] = (resolved, resolved.digest)
        return self._known[asked]

    def _check_caps(self, agent: AgentSettings) -> None:
        """That an item has a cap of its own, not above the one that all share. Raises ConfigError."""
        cost, tokens = submission.cost_cap(agent), agent.max_tokens_total
        for option, setting, shared, own in (
            ("--max-cost", "max_cost_usd", self._wanted.max_cost_usd, cost),
            ("--max-tokens", "max_tokens_total", self._wanted.max_tokens, tokens),
        ):
            if shared is None:
                continue
            if own is None:
                raise ConfigError(
                    f"{option} is shared out by the caps of the items, and there is none: add --set {setting}=…, the most"
                    " that one item may take"
                )
            if own > shared:
                raise ConfigError(f"{setting} of an item is {own}, more than {option} {shared} of the whole batch")


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]
