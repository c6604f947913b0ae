"""An installation for the command line to work on, and the command line as people call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from celery import Celery

from ops.dev.scripted_provider.script import Step
from persistence import views
from persistence.database import Database
from persistence.views import TurnView
from tests.support.processes import clean_environment, eventually, perdure
from tests.support.provider import ScriptedProvider, scripted_provider
from workers import config, stack, wakes
from workers.celery_app import configuration
from workers.cli.own_worker import OwnWorker
from workers.client import Client
from workers.settings import Settings, sqlalchemy_url

CONFIG = """
[providers.main]
api = "openai-chat"
base_url = "{url}"
api_keys = ["env:CLI_API_KEY"]
[agents.default]
model = "main:scripted-answer"
tools = ["calculator", "time"]
retry_base_s = 0.05
[agents.brief]
model = "main:scripted-answer"
iterations = 1
grace = "off"
tools = ["calculator"]
[agents.odd]
model = "main:scripted-answer"
tools = ["nope"]
context = ["nope"]
[prices."scripted-priced"]
input_usd_per_million = 1
output_usd_per_million = 10
"""
API_KEY = "sk-planted-for-the-command-line"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """Whatever else a reader takes for the end of a line, none of it stands inside of one."""
        return [json.loads(line) for line in self.out.splitlines()]


class Running:
    """A command that has been started; its stdout and stderr are kept in files, so that nothing ever blocks."""

    def __init__(self, words: tuple[str, ...], *, env: Mapping[str, str], cwd: Path, stdin: bytes | None) -> None:
        self._folder = cwd
        self._out = cwd / f"{time.monotonic_ns()}.out"
        self._err = self._out.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                perdure(*words), stdin=subprocess.PIPE, stdout=out, stderr=err, env=env, cwd=cwd, start_new_session=True
            )
        assert self._process.stdin is not None
        if stdin is not None:
            self._process.stdin.write(stdin)
        self._process.stdin.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    def wait_for(self, words: str, *, within_s: float = 40.0) -> None:
        """Return when it has said `words` on either stream."""

        def look() -> bool:
            said = words in self.out or words in self.err
            assert said or self.is_alive, f"ended with {self._process.returncode}:\n{self.out}\n{self.err}"
            return said

        eventually(look, f"{words!r} is said", within_s=within_s)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._process.terminate()

    def press_ctrl_c(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self, *, within_s: float = 60.0) -> Done:
        """Wait for its end."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"has not ended within {within_s:g} s:\n{self.out}\n{self.err}") from None
        return Done(code, self.out, self.err)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Place:
    """A home with servers of its own, a configuration, and a provider that tests write scripts for."""

    def __init__(self, home: Path, folder: Path, provider: ScriptedProvider) -> None:
        self.home, self.folder, self.provider = home, folder, provider
        self.config = folder / "perdure.toml"
        self.config.write_text(CONFIG.format(url=provider.openai_url))
        self._running: list[Running] = []

    @property
    def env(self) -> dict[str, str]:
        """Only the home is told: the servers are found there."""
        return clean_environment(
            PERDURE_HOME=str(self.home), PERDURE_CONFIG=str(self.config), PERDURE_LEASE_S="3", CLI_API_KEY=API_KEY
        )

    @property
    def worker_log(self) -> Path:
        return self.home / "worker" / "log"

    def start(self, *words: str, stdin: bytes | None = None, **env: str) -> Running:
        running = Running(words, env=self.env | env, cwd=self.folder, stdin=stdin)
        self._running.append(running)
        return running

    def call(self, *words: str, stdin: bytes | None = None, **env: str) -> Done:
        return self.start(*words, stdin=stdin, **env).end()

    @property
    def servers(self) -> stack.Servers:
        found = stack.find(self.home)
        assert found is not None
        return found

    @cached_property
    def app(self) -> Celery:
        """Celery as another service has it."""
        app = Celery("cli-tests", set_as_current=False)
        app.conf.update(configuration(self.servers.redis_url))
        return app

    @cached_property
    def client(self) -> Client:
        """The door of this place, for what a test needs and is not about. Its servers must run."""
        settings = Settings(home=self.home, config=self.config)
        return Client(
            settings,
            database=Database(sqlalchemy_url(self.servers.database_url), connections=2, name="test"),
            keys=wakes.connect(self.servers.redis_url),
            app=self.app,
            configured=config.load(settings, {"CLI_API_KEY": API_KEY}),
        )

    @property
    def database(self) -> Database:
        return self.client.database

    def model(self, name: str, *steps: Step) -> str:
        """A model that answers so, as `--set` takes it."""
        return f"model=main:{self.provider.script(name, list(steps))}"

    def submit(self, prompt: str, model: str, **how: Any) -> str:
        """Start a turn; its id."""
        overrides = {"model": model.removeprefix("model=")}
        return str(self.client.submit(prompt, overrides=overrides, **how).turn_id)

    def wait_for_end(self, turn_id: str) -> TurnView:
        eventually(lambda: views.turn(self.database, UUID(turn_id)).status.is_ending, f"{turn_id} has ended")
        return views.turn(self.database, UUID(turn_id))

    def end_all(self) -> None:
        """SIGTERM to whatever a test has left running, and wait for it: a worker signs off."""
        for running in self._running:
            running.terminate()
        for running in self._running:
            running.end()

    def kill_all(self) -> None:
        for running in self._running:
            if running.is_alive:
                running.kill()
        if "client" in self.__dict__:
            self.client.close()


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """An installation in which nothing runs yet but the provider."""
    with stack.throwaway() as home, scripted_provider() as provider:
        made = Place(home, folder, provider)
        try:
            yield made
        finally:
            made.kill_all()
            OwnWorker(Settings(home=home)).stop()


def processes_of(home: Path) -> list[str]:
    """The command lines of all processes that know this home, but those of the tests."""

    def knows(process: psutil.Process, command: str) -> bool:
        return str(home) in command or process.environ().get("PERDURE_HOME") == str(home)

    return [command for command in _commands(knows) if "throwaway" not in command]


def processes_with(variable: str, value: str) -> list[str]:
    """The command lines of all processes with this in their environment."""
    return _commands(lambda process, _: process.environ().get(variable) == value)


def _commands(wanted: Callable[[psutil.Process, str], bool]) -> list[str]:
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            is_alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if is_alive and wanted(process, command):
                found.append(command)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
