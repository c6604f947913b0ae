"""The demo: one real turn, from servers that start by themselves to a report whose numbers come out of the tools.

    python -m ops.dev.demo           run it
    python -m ops.dev.demo --kill    also kill the worker in the middle (SIGKILL) and start another, which goes on
    … --local-model                  with a small real model on this machine's CPU, and a task of its size

Everything lives in a temporary home that is gone at the end; no server, file or setting of the user's is touched. With
OPENAI_API_KEY, ANTHROPIC_API_KEY, PERDURE_BASE_URL or PERDURE_MODEL the turn uses that model, else a scripted one, which
speaks the OpenAI protocol over HTTP and needs the tools as much as a real one does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from ops.dev import demo_script, local_model
from ops.dev.local_model import task as local_task
from ops.dev.local_model.process import LocalModelError, weights
from orchestration.errors import PerdureError
from persistence import migrate, views
from persistence.database import Database
from persistence.errors import StoreError
from persistence.events import StoredEvent
from persistence.records.message import Call, Result
from workers import stack
from workers.cli import connecting, exits, notices, screen, turns
from workers.cli.progress import Iteration, Progress
from workers.cli.screen import Screen
from workers.client import Client
from workers.settings import sqlalchemy_url

REPOSITORY = Path(__file__).resolve().parents[2]
# Whose model it is, where one of them is set.
_OWN_MODEL = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PERDURE_BASE_URL", "PERDURE_MODEL")
# The user's servers and files, which are none of the demo's business.
_USERS = ("PERDURE_DATABASE_URL", "PERDURE_REDIS_URL", "PERDURE_WORKSPACE")
_SCRIPT = "demo"
# Between two pieces of the scripted model's answers: slow enough to be watched.
_PAUSE_S = 0.02
_KILL_AFTER_ITERATION = 5
_READY_S = 60.0
_CONFIG = """\
[providers.demo]
api = "openai-chat"
base_url = "{url}"

[agents.default]
model = "demo:{model}"
tools = []
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code is that of `perdure run`."""
    parser = argparse.ArgumentParser(prog="ops/demo", description="Run one durable agent turn from nothing.")
    parser.add_argument("--kill", action="store_true", help="kill the worker in the middle and let another go on")
    parser.add_argument("--seed", type=int, default=0, help="other numbers in the files")
    parser.add_argument("--local-model", action="store_true", help="use a small real model on this machine's CPU")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    notices.start()
    try:
        if options.local_model:
            weights()
        return _demo(options.seed, kills=options.kill, is_local=options.local_model)
    except KeyboardInterrupt:
        _tell("Stopped.")
        return exits.INTERRUPTED
    except LocalModelError as error:
        notices.say(str(error))
        return exits.UNAVAILABLE
    except (PerdureError, StoreError) as error:
        notices.say(str(error))
        return exits.of_error(error)


def _demo(seed: int, *, kills: bool, is_local: bool) -> int:
    task, tools = (local_task.TASK, local_task.TOOLS) if is_local else (demo_script.TASK, demo_script.TOOLS)
    with ExitStack() as held:
        home = held.enter_context(stack.throwaway())
        _settle_in(home)
        _step("Postgres and Valkey start, from wheels, in a folder that is gone at the end")
        started = time.monotonic()
        servers = stack.up(home)
        migrate.upgrade(sqlalchemy_url(servers.database_url))
        _tell(f"They took {time.monotonic() - started:.1f} s, the schema included.")
        model = held.enter_context(_local_model(home) if is_local else _model(home))
        _step(f"A worker starts, and a turn for {model}")
        folder = home / "invoices-demo"
        demo_script.write_workspace(folder, seed=seed)
        worker = held.enter_context(Worker(sqlalchemy_url(servers.database_url), home))
        _tell(f"The task: {task}\n")
        client = held.enter_context(connecting.client())
        overrides = {"workspace": str(folder), "tools": ",".join(tools)}
        submitted = client.submit(task, overrides=overrides)
        watched: Screen = screen.choose()
        code = turns.watch_to_end(client, submitted, Killing(watched, worker) if kills else watched)
        results = _tell_origins(client, submitted.turn_id)
        if is_local:
            _tell_numbers(results, views.turn(client.database, submitted.turn_id).output_text or "")
        else:
            _tell_report(folder)
        _step("Everything stops")
    return code


def _settle_in(home: Path) -> None:
    """From here on this process and its children know the temporary home alone."""
    for name in _USERS:
        os.environ.pop(name, None)
    os.environ["PERDURE_HOME"] = str(home)


@contextmanager
def _model(home: Path) -> Generator[str]:
    """The user's model, or a scripted one in a process of its own; its name for people."""
    own = [name for name in _OWN_MODEL if os.environ.get(name)]
    if own:
        yield f"the model that {' and '.join(own)} stand for"
        return
    command = ["ops.dev.scripted_provider", "--delay", str(_PAUSE_S)]
    command += ["--policy", f"{_SCRIPT}=ops.dev.demo_script:policy"]
    with _serving(home, command, f"scripted-{_SCRIPT}") as url:
        yield f"a scripted model at {url} (set OPENAI_API_KEY or another for a real one)"


@contextmanager
def _local_model(home: Path) -> Generator[str]:
    """The small real model; its name for people. Raises LocalModelError if this machine cannot run it."""
    with _serving(home, ["ops.dev.local_model"], local_model.NAME) as url:
        _tell(local_model.NOTE)
        yield f"{local_model.NAME} at {url}"


@contextmanager
def _serving(home: Path, command: Sequence[str], model: str) -> Generator[str]:
    """A model server in a process of its own, which the configuration names from here on; its URL."""
    whole = [sys.executable, "-m", *command]
    provider = subprocess.Popen(whole, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert provider.stdout is not None
        line = provider.stdout.readline()
        if not line:
            raise LocalModelError("the model's server has not started; its own words are above")
        url = json.loads(line)["openai_url"]
        config = home / "perdure.toml"
        config.write_text(_CONFIG.format(url=url, model=model), "utf-8")
        os.environ["PERDURE_CONFIG"] = str(config)
        yield url
    finally:
        _end(provider)


class Worker:
    """`perdure worker` as a process of its own, which can be lost and replaced."""

    def __init__(self, database_url: str, home: Path) -> None:
        self._database = Database(database_url, connections=1, name="perdure demo")
        self._log = home / "worker.log"
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._database.close()
        _end(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def replace(self) -> None:
        """SIGKILL, without a warning; then another one, which is ready when this returns."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workers.cli.main", "worker", "--name", "demo"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, cwd=REPOSITORY, stderr=log, stdout=log, start_new_session=True)
        end = time.monotonic() + _READY_S
        while time.monotonic() < end and process.poll() is None:
            if any(each.pid == process.pid for each in views.workers(self._database)):
                return process
            time.sleep(0.05)
        _end(process)
        raise PerdureError(f"the worker has not become ready: {self._log.read_text('utf-8', 'replace')[-2000:]}")


class Killing:
    """A screen that kills the worker once, in the middle of what it shows."""

    def __init__(self, shown: Screen, worker: Worker) -> None:
        self._shown = shown
        self._worker = worker
        self._progress = Progress()
        self._is_due = True

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, where)

    def show(self, event: StoredEvent) -> None:
        self._shown.show(event)
        final = self._progress.take(event)
        if self._is_due and any(isinstance(each, Iteration) and each.n == _KILL_AFTER_ITERATION for each in final):
            self._is_due = False
            self.say(f"SIGKILL to the worker, process {self._worker.pid}")
            self._worker.replace()
            self.say(f"another worker is there, process {self._worker.pid}")

    def say(self, sentence: str) -> None:
        self._shown.say(sentence)


def _tell_origins(client: Client, turn_id: UUID) -> list[str]:
    """What the calculator was asked and what it said: every number of the report. Returns the calls' results."""
    _step("Where the numbers come from: the turn's calls, as they are stored in Postgres")
    messages = [found.message for found in views.history(client.database, turn_id)]
    results = {b.id: b.content for m in messages for b in m.content if isinstance(b, Result)}
    for call in (b for m in messages for b in m.content if isinstance(b, Call)):
        arguments, result = _short(call.arguments), _short(results.get(call.id, "(no result)"))
        print(notices.printable(f"  {call.name}({arguments}) → {result}"))
    return list(results.values())


def _tell_numbers(results: Sequence[str], words: str) -> None:
    """How far the local model got: its expressions decide over the first number, its sentences over the second."""
    computed, told = local_task.true_numbers_in(results), local_task.true_numbers_in([words])
    _tell(
        f"Of {len(local_task.QUESTIONS)} true numbers, the calculator gave {computed} and the model's words hold {told}."
    )


def _tell_report(folder: Path) -> None:
    """The file that the turn has written, and whether a computation apart from the turn comes to the same numbers."""
    reports = sorted(folder.glob("*.md"))
    if not reports:
        _tell("The turn has written no report.")
        return
    _step(f"The report, {reports[0].name}")
    report = reports[0].read_text("utf-8", "replace")
    print(notices.printable(report))
    true = demo_script.expected(folder)
    right = [name for name, value in true.items() if str(value) in report.replace(",", "")]
    _tell(f"{len(right)} of {len(true)} numbers are those that a computation apart from the turn comes to.")


def _short(text: str, most: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """SIGTERM, then patience: a worker hands its turns back."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _step(title: str) -> None:
    print(f"\n── {title}", flush=True)


def _tell(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main())
