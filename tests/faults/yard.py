"""What the fault tests of one test process share: servers that may be stopped and killed, a provider, and live workers.

The workers live on from test to test, as they do in production: a worker that a fault has spoilt spoils the next test.
After a failed test everything but the servers begins anew.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
import redis
from celery import Celery
from psycopg import sql

from persistence import migrate
from persistence.database import Database
from tests.support.processes import Process, clean_environment, eventually, perdure
from tests.support.provider import ScriptedProvider, scripted_provider
from workers import config, stack, wakes
from workers.celery_app import configuration
from workers.client import Client
from workers.settings import Settings, libpq_url, sqlalchemy_url

Sql: TypeAlias = Callable[..., list[tuple[Any, ...]]]

# Short, so that tests are; long enough for a worker that shares two cores with everything else here to renew in time.
LEASE_S = 3.0

_CONFIG = """
[providers.main]
api = "openai-chat"
base_url = "{url}"
api_keys = ["env:FAULTS_API_KEY"]
[providers.background]
api = "openai-responses"
base_url = "{url}"
api_keys = ["env:FAULTS_API_KEY"]
extra_body = {{ background = true }}
[providers.thinking]
api = "anthropic"
base_url = "{url}"
api_keys = ["env:FAULTS_API_KEY"]
extra_body = {{ thinking = {{ type = "enabled", budget_tokens = 1024 }} }}
[agents.default]
model = "main:scripted-none"
system_prompt = "You are tested."
tools = ["tests.faults.ledger_tools"]
retry_base_s = 0.1
"""


class Yard:
    """`home` is that of the servers; `folder` holds the configuration, the ledger, the gates of tools, and all logs."""

    def __init__(self, home: Path, folder: Path, provider: ScriptedProvider) -> None:
        self.home = home
        self.folder = folder
        self.provider = provider
        self.api_key = f"sk-planted-{secrets.token_hex(16)}"
        self.ledger = folder / "ledger"
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.processes: list[Process] = []
        self.standing: list[Process] = []
        self._config = folder / "perdure.toml"
        self._config.write_text(_CONFIG.format(url=provider.openai_url))
        self._numbers = count()
        self._begin()

    # -- the product ---------------------------------------------------------------------------------------------

    def workers(self, count: int) -> list[Process]:
        """That many live workers with the usual settings, all ready; those of the last test are used again."""
        self.standing = [w for w in self.standing if w.is_alive]
        while len(self.standing) > count:
            self.stop(self.standing.pop())
        fresh = [self.start_worker() for _ in range(count - len(self.standing))]
        for worker in fresh:
            worker.wait_for_log("worker.ready")
        self.standing += fresh
        return list(self.standing)

    def start_worker(self, *words: str, **env: str) -> Process:
        """A worker that is starting; it is not used again by later tests."""
        name = f"w{next(self._numbers)}"
        return self.start(name, *perdure("worker", "--name", name, *words), **env)

    def start(self, name: str, *command: str, **env: str) -> Process:
        """A process with the environment of this installation; `env` counts more."""
        log = self.folder / f"{name}-{next(self._numbers)}.log"
        process = Process(name, command, env=self.environment(**env), cwd=self.folder, log=log)
        self.processes.append(process)
        return process

    def stop(self, process: Process) -> None:
        """SIGTERM, and the end of it."""
        process.terminate()
        process.wait(within_s=40)

    def environment(self, **more: str) -> dict[str, str]:
        return (
            clean_environment(
                PERDURE_DATABASE_URL=self.settings.database_url or "",
                PERDURE_REDIS_URL=self.servers.redis_url,
                PERDURE_CONFIG=str(self._config),
                PERDURE_HOME=str(self.folder),
                PERDURE_WORKSPACE=str(self.folder / "workspace"),
                PERDURE_LEASE_S=f"{LEASE_S:g}",
                PERDURE_CONCURRENCY="40",
                FAULTS_API_KEY=self.api_key,
                FAULTS_LEDGER=str(self.ledger),
                FAULTS_GATES=str(self.gates),
            )
            | more
        )

    def mark(self) -> None:
        """A test begins: what runs now and what starts from now on is its own."""
        self.processes = [p for p in self.processes if p.is_alive]

    def living(self) -> list[psutil.Process]:
        """Every process of the product that works for this yard, whoever started it."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("PERDURE_CONFIG") == str(self._config)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    # -- the servers ---------------------------------------------------------------------------------------------

    def stop_redis(self) -> None:
        stack.down(self.home, only=[stack.VALKEY])

    def stop_postgres(self) -> None:
        stack.down(self.home, only=[stack.POSTGRES])

    def start_servers(self) -> None:
        """Start again what was stopped; each comes back where it was."""
        found = stack.up(self.home)
        assert found.redis_url == self.servers.redis_url, "another program has taken Valkey's port"
        assert found.database_url == self.servers.database_url, "another program has taken Postgres's port"

    def server_pids(self) -> dict[str, int]:
        return stack.pids(self.home)

    @contextmanager
    def sql(self, options: str = "") -> Generator[Sql]:
        """A connection beside the product, in autocommit: what runs one statement and returns its rows."""
        url = libpq_url(self.settings.database_url or "")
        with psycopg.connect(url, autocommit=True, application_name="test", options=options) as connection:

            def run(statement: str, *params: object) -> list[tuple[Any, ...]]:
                cursor = connection.execute(cast("Any", statement), params or None)
                return cursor.fetchall() if cursor.description else []

            yield run

    def rows(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """The same for a single statement."""
        with self.sql() as run:
            return run(statement, *params)

    def wait_out_the_start_of_postgres(self, lease_s: float = LEASE_S) -> None:
        """The reaper holds off for one lease after Postgres has started; a test of its speed waits for that."""
        young = "SELECT now() - pg_postmaster_start_time() < make_interval(secs => %s)"

        eventually(
            lambda: self.rows(young, lease_s) == [(False,)], "Postgres is older than a lease", within_s=lease_s + 5
        )

    # -- beginning and end ---------------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """After a failed test: no process, no turn, no key of it is left."""
        self.kill_all()
        self.close()
        self.start_servers()
        self.ledger.unlink(missing_ok=True)
        self._begin()

    def kill_all(self) -> None:
        for process in self.processes:
            process.end()
        for process in self.living():
            process.kill()
        self.standing = []

    def close(self) -> None:
        self.client.close()
        self.keys.close()

    def _begin(self) -> None:
        self.servers = stack.up(self.home)
        name = f"faults_{next(self._numbers)}"
        with psycopg.connect(libpq_url(self.servers.database_url), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        url = urlunsplit(urlsplit(sqlalchemy_url(self.servers.database_url))._replace(path=f"/{name}"))
        migrate.upgrade(url)
        self.settings = Settings(
            database_url=url,
            redis_url=self.servers.redis_url,
            config=self._config,
            home=self.folder,
            workspace=self.folder / "workspace",
        )
        self.keys = redis.Redis.from_url(self.servers.redis_url, decode_responses=True)
        self.keys.flushall()
        self.app = Celery("faults", set_as_current=False)
        self.app.conf.update(configuration(self.servers.redis_url))
        configured = config.load(self.settings, {"FAULTS_API_KEY": self.api_key})
        database = Database(url, connections=4, name="test client")
        self.client = Client(
            self.settings,
            database=database,
            keys=wakes.connect(self.servers.redis_url),
            app=self.app,
            configured=configured,
        )

    @property
    def database(self) -> Database:
        return self.client.database

    @property
    def secrets(self) -> list[str]:
        """What must be nowhere but in the environment: the key, and the passwords of both servers."""
        words = [self.api_key, self.servers.database_url, self.servers.redis_url]
        return words[:1] + [password for url in words[1:] if (password := urlsplit(url).password)]

    def ledger_lines(self) -> list[dict[str, Any]]:
        if not self.ledger.exists():
            return []
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]


@contextmanager
def yard(folder: Path) -> Generator[Yard]:
    with stack.throwaway() as home, scripted_provider() as provider:
        made = Yard(home, folder, provider)
        try:
            yield made
        finally:
            made.kill_all()
            made.close()
