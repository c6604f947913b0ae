"""perdure.toml and what the environment adds to it, as plain values: providers, agents, prices and models.

Every mistake is one ConfigError whose sentence names the file, the key, and what to write instead.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestration.costs import USUAL_OUTPUT_TOKENS
from orchestration.errors import ConfigError
from orchestration.providers import catalog
from orchestration.providers.pricing import PriceBook
from orchestration.providers.settings import ENV_REFERENCE, Api, ModelLimits, Price, ProviderSettings
from persistence.records.agent import AgentSettings
from persistence.records.usage import Usage
from workers import config_file, output_schemas, overrides
from workers.config_file import AgentEntry, ConfigFile, ProviderEntry, ended, guess
from workers.settings import Settings

DEFAULT_AGENT = "default"
NO_MODEL = (
    "No model is configured: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or PERDURE_BASE_URL and PERDURE_MODEL for any "
    "OpenAI-compatible server, or write a perdure.toml (perdure.example.toml explains every key)."
)

# Providers that the environment makes known, by their names there, with the model of people who name none.
_OPENAI = "openai"
_ANTHROPIC = "anthropic"
_OWN_SERVER = "main"
_USUAL_MODELS = {_OPENAI: "gpt-5-mini", _ANTHROPIC: "claude-haiku-4-5"}
_LIMITS = ("requests_per_minute", "tokens_per_minute")
_USUAL_TOOLS = ("files", "calculator", "time")


@dataclass(frozen=True, slots=True)
class Config:
    """What this process can be asked for. `source` is where it was read, for sentences about it."""

    source: str
    providers: Mapping[str, ProviderSettings]
    agents: Mapping[str, AgentSettings]
    prices: Mapping[str, Price]
    models: Mapping[str, ModelLimits]


def load(settings: Settings, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration file of `settings`, or none where the default one is missing, and the environment beside it.

    The environment adds the providers `openai`, `anthropic` and `main` (PERDURE_BASE_URL) where the file does not define
    them, the model of agents that name none, and, where the file has no agent, the agent `default`. Raises ConfigError.
    """
    source, data = _read_file(settings)
    data = output_schemas.with_files(data, settings.config.parent, where=source)
    file = config_file.read(ConfigFile, data, where=source)
    providers = {p.name: p for p in _from_environment(settings, environ)}
    providers |= {name: _provider(name, entry, source) for name, entry in file.providers.items()}
    providers = _with_group_limits(providers, source)
    agents = _agents(file, settings, providers, source)
    for agent in agents.values():
        _check_models(agent, providers, where=source)
        output_schemas.check(agent, where=source)
    return Config(
        source=source,
        providers=providers,
        agents=agents,
        prices={name: Price(**entry.model_dump()) for name, entry in file.prices.items()},
        models={name: ModelLimits(**entry.model_dump()) for name, entry in file.models.items()},
    )


def resolve_agent(config: Config, name: str, given: Mapping[str, str] | None = None) -> AgentSettings:
    """The agent `name` with the `--set` texts of one turn over its own settings.

    Raises ConfigError: no such agent (the sentence lists the known ones), no such setting, a text that is not a value
    of its setting, or a model whose provider is not configured.
    """
    agent = config.agents.get(name)
    if agent is None:
        if not config.agents and not config.providers:
            raise ConfigError(NO_MODEL)
        known = ", ".join(config.agents) or 'none yet; add [agents.default] with model = "provider:model"'
        raise ConfigError(f"There is no agent {name!r} in {config.source}. Known are: {known}.")
    if not given:
        return _with_limits(agent, config.models)
    known = config_file.setting_names()
    for key in given:
        if key not in known:
            raise ConfigError(
                ended(f"{overrides.named(key, given[key])}: an agent has no such setting; {guess(key, known)}")
            )
    data = asdict(agent) | {key: config_file.typed(key, text) for key, text in given.items()}
    del data["name"]
    where = overrides.place(given)
    entry = config_file.read(AgentEntry, data, where=where)
    changed = AgentSettings(name=name, **entry.model_dump())
    _check_models(changed, config.providers, where=where)
    output_schemas.check(changed, where=where)
    return _with_limits(changed, config.models)


def place_of(config: Config, agent: str, key: str, given: Mapping[str, str] | None = None) -> str:
    """Where a setting of a turn stands, for the beginning of a sentence about it."""
    if given is not None and key in given:
        return overrides.written(key, given[key])
    return f"{config.source}: agents.{agent}.{key}"


def _with_limits(agent: AgentSettings, models: Mapping[str, ModelLimits]) -> AgentSettings:
    """The agent with what `[models]` says of its models, where it does not say it itself.

    A turn keeps what it was submitted with: whatever changes here later, it goes on under the same limits.
    """
    limits = _limits_of(agent.model, models)
    output = limits.max_output_tokens
    if output is not None and (agent.max_output_tokens is not None or output < USUAL_OUTPUT_TOKENS):
        output = min(agent.max_output_tokens or output, output)
    else:  # a model that could say more than usual need not
        output = agent.max_output_tokens
    return replace(
        agent,
        context_window=agent.context_window or limits.context_window,
        max_output_tokens=output,
        compress_window=agent.compress_window or _limits_of(agent.compress_model or agent.model, models).context_window,
    )


def _limits_of(model: str, models: Mapping[str, ModelLimits]) -> ModelLimits:
    """By "provider:model", or by the model's own name."""
    return models.get(model) or models.get(model.partition(":")[2]) or ModelLimits()


def check_prices(config: Config, agent: AgentSettings) -> None:
    """That every model which an agent with a capped cost may come to has a price: the cap could not be kept without it.

    Raises ConfigError with what to write.
    """
    prices = PriceBook(config.providers, config.prices)
    for model in every_model(agent):
        provider, _, name = model.partition(":")
        if prices(provider, name, Usage()) is None:
            raise ConfigError(
                f"max_cost_usd is set, but no price of {model!r} is known, so the cap could not be kept: add "
                f'[prices."{name}"] with input_usd_per_million and output_usd_per_million to perdure.toml (0 where it '
                "is free), or leave max_cost_usd out (--set max_cost_usd=none)."
            )


def _read_file(settings: Settings) -> tuple[str, Mapping[str, Any]]:
    path: Path = settings.config
    try:
        return str(path), tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if not settings.config_is_explicit:
            return "the environment", {}
        raise ConfigError(
            f"PERDURE_CONFIG is {path}, but there is no such file: write it, or unset the variable."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): mend that, or name another in PERDURE_CONFIG."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _from_environment(settings: Settings, environ: Mapping[str, str]) -> list[ProviderSettings]:
    """The providers whose usual variables are set. Only references to the keys are kept."""
    found: list[ProviderSettings] = []
    if settings.base_url:
        names = [name for name in ("PERDURE_API_KEY", "OPENAI_API_KEY") if environ.get(name)]
        keys = tuple(ENV_REFERENCE + name for name in names[:1])
        found.append(ProviderSettings(_OWN_SERVER, Api.OPENAI_CHAT, settings.base_url, keys))
    if environ.get("OPENAI_API_KEY"):
        address = environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        found.append(ProviderSettings(_OPENAI, Api.OPENAI_CHAT, address, ("env:OPENAI_API_KEY",)))
    if environ.get("ANTHROPIC_API_KEY"):
        address = environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
        found.append(ProviderSettings(_ANTHROPIC, Api.ANTHROPIC, address, ("env:ANTHROPIC_API_KEY",)))
    return found


def _usual_model(settings: Settings, providers: Mapping[str, ProviderSettings]) -> str | None:
    """The "provider:model" of agents that name none, as the environment has it; None where it says nothing."""
    wanted = settings.model
    if wanted is None:
        if settings.base_url:
            raise ConfigError("PERDURE_BASE_URL is set, but PERDURE_MODEL is not: set it to a model of that server.")
        return next((f"{name}:{model}" for name, model in _USUAL_MODELS.items() if name in providers), None)
    # Many local servers have colons in their models' names, so only a known provider counts as one.
    if wanted.partition(":")[0] in providers and ":" in wanted:
        return wanted
    if settings.base_url:
        return f"{_OWN_SERVER}:{wanted}"
    order = (_ANTHROPIC, _OPENAI) if wanted.startswith("claude") else (_OPENAI, _ANTHROPIC)
    for name in (*order, *(providers if len(providers) == 1 else ())):
        if name in providers:
            return f"{name}:{wanted}"
    raise ConfigError(
        f"PERDURE_MODEL is {wanted!r}, but nothing says whose model that is: set PERDURE_BASE_URL to the server that "
        "has it, or OPENAI_API_KEY or ANTHROPIC_API_KEY, or write it as provider:model."
    )


def _provider(name: str, entry: ProviderEntry, source: str) -> ProviderSettings:
    provider = ProviderSettings(name=name, **entry.model_dump())
    try:
        catalog.check(provider)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    if provider.api is Api.ANTHROPIC and provider.base_url is not None:
        # That protocol's paths bring their own /v1, but people write the address as they do for the others.
        return replace(provider, base_url=provider.base_url.rstrip("/").removesuffix("/v1"))
    return provider


def _with_group_limits(providers: Mapping[str, ProviderSettings], source: str) -> dict[str, ProviderSettings]:
    """The providers of one quota group share its limits, whichever of them states one. Raises ConfigError."""
    limits: dict[tuple[str, str], tuple[int, str]] = {}
    for provider in providers.values():
        for limit in _LIMITS:
            value: int | None = getattr(provider, limit)
            if provider.quota_group is None or value is None:
                continue
            known, by = limits.setdefault((provider.quota_group, limit), (value, provider.name))
            if known != value:
                raise ConfigError(
                    f"{source}: [providers.{by}] and [providers.{provider.name}] share the quota group "
                    f"{provider.quota_group!r}, but {limit} is {known} for one and {value} for the other: write it once."
                )
    return {
        name: provider
        if provider.quota_group is None
        else replace(
            provider, **{k: limits[provider.quota_group, k][0] for k in _LIMITS if (provider.quota_group, k) in limits}
        )
        for name, provider in providers.items()
    }


def _agents(
    file: ConfigFile, settings: Settings, providers: Mapping[str, ProviderSettings], source: str
) -> dict[str, AgentSettings]:
    entries: dict[str, dict[str, Any]] = {name: entry.model_dump() for name, entry in file.agents.items()}
    nameless = next((name for name, values in entries.items() if not values["model"]), None)
    if nameless is not None or not entries:
        usual = _usual_model(settings, providers)
        if usual is None and nameless is not None:
            raise ConfigError(f'{source}: [agents.{nameless}] lacks model: add model = "provider:model".')
        if usual is None:
            return {}
        entries = entries or {DEFAULT_AGENT: {"model": usual, "tools": _USUAL_TOOLS}}
        for values in entries.values():
            values["model"] = values["model"] or usual
    return {name: AgentSettings(name=name, **values) for name, values in entries.items()}


def _check_models(agent: AgentSettings, providers: Mapping[str, ProviderSettings], *, where: str) -> None:
    for model in every_model(agent):
        provider, colon, rest = model.partition(":")
        if not provider or not colon or not rest:
            raise ConfigError(
                f"{where}: the model {model!r} of the agent {agent.name!r} names no provider: write it as provider:model, "
                f"where a provider is one of {', '.join(providers) or '(none is configured)'}."
            )
        if provider not in providers:
            raise ConfigError(
                f"{where}: the agent {agent.name!r} uses {model!r}, but no provider {provider!r} is configured: "
                f"add [providers.{provider}], or use one of {', '.join(providers) or '(none is configured)'}."
            )


def every_model(agent: AgentSettings) -> tuple[str, ...]:
    """Whatever the agent may ask, for answers, drafts or summaries."""
    compressing = () if agent.compress_model is None else (agent.compress_model,)
    return (*agent.models, *agent.references, *compressing)
