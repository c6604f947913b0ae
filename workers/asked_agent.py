"""The agent that a turn is submitted with, checked as far as it can be before the turn is stored."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.contexts import sources
from orchestration.errors import ConfigError, UnknownTool
from orchestration.tools import registry
from persistence.records.agent import AgentSettings
from workers import config
from workers.config import Config


def resolve(configured: Config, name: str, overrides: Mapping[str, str] | None = None) -> AgentSettings:
    """The agent with the settings of one turn over its own. Raises ConfigError (agent, model, price, settings), UnknownTool."""
    agent = config.resolve_agent(configured, name, overrides)
    if agent.max_cost_usd is not None:
        config.check_prices(configured, agent)
    _check_names(configured, agent, overrides)
    return agent


def _check_names(configured: Config, agent: AgentSettings, overrides: Mapping[str, str] | None) -> None:
    """That what the agent names is here. Raises UnknownTool and ConfigError, with the place of the name."""
    try:
        registry.resolve(agent.tools)
    except UnknownTool as error:
        raise UnknownTool(f"{config.place_of(configured, agent.name, 'tools', overrides)}: {error}") from error
    try:
        sources.resolve(agent.context)
    except ConfigError as error:
        raise ConfigError(f"{config.place_of(configured, agent.name, 'context', overrides)}: {error}") from error
