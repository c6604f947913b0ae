"""The composition root: settings -> the parts that this process runs on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import redis

from orchestration.carrying import Registry
from orchestration.errors import ConfigError
from orchestration.ports import ModelClient
from orchestration.providers import catalog
from orchestration.providers.pricing import PriceBook
from orchestration.runtime import Runtime
from orchestration.tools.toolbox import RegistryToolbox
from persistence import ids
from persistence.database import Database
from persistence.records.turn import Turn
from workers import config, identity, servers, wakes
from workers.config import Config
from workers.live.writer import LiveWriter
from workers.rate_guard.guard import RedisRateGuard
from workers.settings import WORKSPACE_ID_FILE, Settings, libpq_url

# Of the 14 connections that a process may have: 11 for turns, 1 for renewals, 1 for the lead.
_TURN_CONNECTIONS = 11


class Workspaces:
    """One folder for every session below one root. The root's id file tells workers on several hosts whether theirs is the same."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.id = self._root_id()

    def folder(self, turn: Turn) -> Path:
        """The folder of the turn's session, made at its first use; the agent may name one of its own instead."""
        folder = Path(turn.agent.workspace) if turn.agent.workspace else self._root / str(turn.session_id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The workspace {folder} cannot be made: {error.strerror}") from error
        return folder

    def _root_id(self) -> str:
        """The root's id, made by whoever comes first."""
        file = self._root / WORKSPACE_ID_FILE
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            try:
                with file.open("x") as new:
                    new.write(str(ids.new_id()))
            except FileExistsError:
                pass  # somebody made it before us, which is the usual case
            return file.read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"The workspace {self._root} cannot be used ({error.strerror}): set PERDURE_WORKSPACE to a folder of yours"
            ) from error


class Models:
    """The clients of the configured providers, each made once, at its first use."""

    def __init__(self, configured: Config) -> None:
        self._configured = configured
        self._clients: dict[str, ModelClient] = {}
        self._lock = threading.Lock()

    def __call__(self, provider: str) -> ModelClient:
        """Raises ConfigError when this worker does not have the provider or its key."""
        client = self._clients.get(provider)
        if client is not None:
            return client
        settings = self._configured.providers.get(provider)
        if settings is None:
            raise ConfigError(
                f"This worker knows no provider {provider!r}: start it anew with the perdure.toml or the keys in its "
                "environment that the turn was submitted with"
            )
        with self._lock:
            if provider not in self._clients:
                self._clients[provider] = catalog.connect(settings)
            return self._clients[provider]


@dataclass(frozen=True)
class Parts:
    """What a process that carries turns is made of."""

    settings: Settings
    config: Config
    runtime: Runtime
    toolbox: RegistryToolbox
    prices: PriceBook
    renewals: Database
    keys: redis.Redis
    guard: RedisRateGuard
    live: LiveWriter
    libpq_url: str

    @property
    def registry(self) -> Registry:
        return self.runtime.registry

    @property
    def lease(self) -> timedelta:
        return self.runtime.lease


def assemble(settings: Settings, *, on_claimed: Callable[[UUID], None]) -> Parts:
    """The parts of a process that carries turns; `on_claimed` hears of each claim.

    Raises ConfigError or ServersMissing, each with a sentence; no server is asked yet."""
    found = servers.look_up(settings)
    configured = config.load(settings)
    workspaces = Workspaces(settings.workspace)
    toolbox = RegistryToolbox()
    prices = PriceBook(configured.providers, configured.prices)
    guard = RedisRateGuard(found.redis_url, configured.providers)
    keys = wakes.connect(found.redis_url)
    live = LiveWriter(keys)
    runtime = Runtime(
        database=Database(found.database_url, connections=_TURN_CONNECTIONS, name="perdure worker"),
        models=Models(configured),
        toolbox=toolbox,
        workspace=workspaces.folder,
        worker=str(identity.own()),
        workspace_id=workspaces.id,
        lease=timedelta(seconds=settings.lease_s),
        slice_=timedelta(seconds=settings.slice_s),
        on_claimed=on_claimed,
        prices=prices,
        guard=guard,
        live=live,
    )
    return Parts(
        settings=settings,
        config=configured,
        runtime=runtime,
        toolbox=toolbox,
        prices=prices,
        renewals=Database(found.database_url, connections=1, name="perdure renewals", is_patient_about_disk=False),
        guard=guard,
        keys=keys,
        live=live,
        libpq_url=libpq_url(found.database_url),
    )
