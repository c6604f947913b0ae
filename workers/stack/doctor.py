"""What is there, what is missing and what to do about it, in plain words. Looks only: nothing is started or written."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestration.errors import ConfigError
from persistence import migrate
from persistence.database import Database
from persistence.errors import StoreError
from workers import config
from workers import settings as environment
from workers.rate_guard.report import report
from workers.settings import WORKSPACE_ID_FILE, Settings
from workers.stack import accounts, binaries, servers
from workers.stack.errors import StackError

_START = "call `perdure up` to start one, or set {variable} to one of yours"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `what` is a sentence; `advice` is empty where all is well.

    `is_server` is set for Postgres and Redis, without which nothing works.
    """

    ok: bool
    what: str
    advice: str = ""
    is_server: bool = False


def examine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Every finding, in the order in which a person would mend them. A check that cannot be made is a finding, too."""
    # An older Python than 3.11 cannot even load this.
    findings = [Finding(True, f"Python {platform.python_version()} at {sys.executable}")]
    try:
        settings = environment.load()
        database_url = settings.database_url or servers.running_postgres(settings.home)
        redis_url = settings.redis_url or servers.running_valkey(settings.home)
    except (ConfigError, StackError) as error:
        return [*findings, Finding(False, str(error), "mend that first; the other checks need it")]
    if not (settings.database_url and settings.redis_url):
        findings.append(_programs(settings))
    findings.append(replace(_postgres(database_url), is_server=True))
    findings.append(replace(_redis(redis_url), is_server=True))
    findings.extend(_configuration(settings, environ))
    findings.extend(Finding(True, held) for held in (report(redis_url) if redis_url else []))
    findings.append(_workspace(settings.workspace))
    return findings


def _programs(settings: Settings) -> Finding:
    """The programs of the servers that are not given by an address."""
    lookups: list[Callable[[], str]] = []
    if not settings.database_url:
        lookups.append(lambda: _first("PostgreSQL", binaries.postgres_candidates()))
    if not settings.redis_url:
        lookups.append(lambda: _first("Valkey", binaries.valkey_candidates()))
    try:
        account = accounts.choose()
        found = [lookup() for lookup in lookups]
    except StackError as error:
        return Finding(False, str(error), accounts.USE_OWN_SERVERS)
    return Finding(True, f"{' and '.join(found)} can be started here, as the user {account.name}")


def _first(name: str, candidates: Iterator[binaries.Found]) -> str:
    for candidate in candidates:
        version = candidate.version
        if version is not None:
            return f"{name} {version}"
    raise StackError(f"No program of {name} can be run here.")


def _postgres(url: str | None) -> Finding:
    if url is None:
        return Finding(False, "No Postgres runs here", _START.format(variable="PERDURE_DATABASE_URL"))
    database = Database(url, connections=1, name="perdure doctor")
    try:
        database.check()
        version = database.one("SELECT current_setting('server_version') AS version")["version"]
        migrate.check_schema(url)
    except StoreError as error:
        return Finding(False, str(error), "see whether the server runs, and where PERDURE_DATABASE_URL points")
    finally:
        database.close()
    return Finding(True, f"Postgres {version} answers, with this version's schema")


def _redis(url: str | None) -> Finding:
    if url is None:
        return Finding(False, "No Redis runs here", _START.format(variable="PERDURE_REDIS_URL"))
    client = redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5, retry=Retry(NoBackoff(), 0))
    try:
        version, memory = client.info("server")["redis_version"], client.info("memory")
    except redis.RedisError as error:
        advice = "see whether the server runs, and where PERDURE_REDIS_URL points"
        return Finding(False, f"Redis cannot be reached: {error}", advice)
    finally:
        client.close()
    if memory.get("maxmemory_policy") != "noeviction":
        what = f"Redis {version} forgets keys when its memory is full ({memory.get('maxmemory_policy')})"
        return Finding(False, what, "set its maxmemory-policy to noeviction: queued messages must not vanish")
    return Finding(True, f"Redis {version} answers")


def _configuration(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    try:
        loaded = config.load(settings, environ)
    except ConfigError as error:
        return [Finding(False, str(error), "perdure.example.toml explains every key")]
    if not loaded.agents:
        return [Finding(False, f"No agent is configured in {loaded.source}", config.NO_MODEL)]
    findings = [Finding(True, f"Agents from {loaded.source}: {', '.join(loaded.agents)}")]
    used = {model.partition(":")[0] for agent in loaded.agents.values() for model in config.every_model(agent)}
    for name in sorted(used):
        try:
            count = len(loaded.providers[name].keys(environ))
        except ConfigError as error:
            findings.append(Finding(False, str(error), "a worker takes the variable from its own environment"))
        else:
            keys = {0: "no key", 1: "one key"}.get(count, f"{count} keys")
            findings.append(Finding(True, f"Provider {name}: {keys}"))
    return findings + _prices(loaded)


def _prices(loaded: config.Config) -> list[Finding]:
    """What is missing where an agent's cost is capped: its turns would be refused."""
    findings: list[Finding] = []
    for agent in loaded.agents.values():
        try:
            if agent.max_cost_usd is not None:
                config.check_prices(loaded, agent)
        except ConfigError as error:
            findings.append(Finding(False, f"Agent {agent.name}: {error}", "its turns are refused until then"))
    return findings


def _workspace(root: Path) -> Finding:
    """Workers on several hosts must share one root; its id says whether they do."""
    nearest = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
        what = f"The workspace {root} cannot be written: {nearest} does not let this user"
        return Finding(False, what, "set PERDURE_WORKSPACE to a folder of yours")
    try:
        number = (root / WORKSPACE_ID_FILE).read_text("utf-8").strip()
    except FileNotFoundError:
        return Finding(True, f"The workspace {root} will be made at the first use")
    except OSError as error:
        return Finding(False, f"The id of the workspace {root} cannot be read ({error.strerror})", "mend its mode")
    return Finding(True, f"The workspace {root} has the id {number}; workers with the same id share its sessions")
