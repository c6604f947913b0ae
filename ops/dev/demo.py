"""The demo: one real turn, from servers that start by themselves to an answer whose numbers come out of the tools.

    python -m ops.dev.demo                  run it
    python -m ops.dev.demo --kill           also kill the worker in the middle (SIGKILL); another one goes on
    python -m ops.dev.demo --local-model    with a small real model on this CPU (the extra `local-model`)

Everything lives in a temporary home that is gone at the end; no server, file or setting of the user's is touched. With
OPENAI_API_KEY, ANTHROPIC_API_KEY, PERDURE_BASE_URL or PERDURE_MODEL the turn uses that model, else a scripted one, which
speaks the OpenAI protocol over HTTP and needs the tools as much as a real one does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ops.dev import demo_script, local_model
from ops.dev.demo_processes import Killing, Worker, served
from ops.dev.local_model import task as small_task
from ops.dev.local_model.process import LocalModelError, weights
from orchestration.errors import PerdureError
from persistence import migrate, views
from persistence.errors import StoreError
from persistence.records.message import Call, Result
from workers import stack
from workers.cli import connecting, exits, notices, screen, turns
from workers.client import Client
from workers.settings import sqlalchemy_url

# Whose model it is, where one of them is set.
_OWN_MODEL = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PERDURE_BASE_URL", "PERDURE_MODEL")
# The user's servers and files, which are none of the demo's business.
_USERS = ("PERDURE_DATABASE_URL", "PERDURE_REDIS_URL", "PERDURE_WORKSPACE")
# Seconds between two pieces of the scripted model's answers: slow enough to be watched.
_PAUSE_S = 0.02
_CONFIG = """\
[providers.demo]
api = "openai-chat"
base_url = "{url}"

[agents.default]
model = "demo:{model}"
"""


@dataclass(frozen=True, slots=True)
class Task:
    """What the turn is asked, with which tools; `tell` shows what came of it: of its folder, its results, its answer."""

    prompt: str
    tools: Sequence[str]
    tell: Callable[[Path, Sequence[str], str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code is that of `perdure run`."""
    parser = argparse.ArgumentParser(prog="ops/demo", description="Run one durable agent turn from nothing.")
    parser.add_argument("--kill", action="store_true", help="kill the worker in the middle and let another go on")
    parser.add_argument("--local-model", action="store_true", help="use a small real model on this CPU")
    parser.add_argument("--seed", type=int, default=0, help="other numbers in the files")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    notices.start()
    try:
        if options.local_model:
            weights()  # so that a missing one is told before anything starts
        return _demo(options.seed, kills=options.kill, is_local=options.local_model)
    except KeyboardInterrupt:
        print("Stopped.", flush=True)
        return exits.INTERRUPTED
    except LocalModelError as error:
        notices.say(str(error))
        return exits.UNAVAILABLE
    except (PerdureError, StoreError) as error:
        notices.say(str(error))
        return exits.of_error(error)


def _demo(seed: int, *, kills: bool, is_local: bool) -> int:
    with ExitStack() as held:
        home = held.enter_context(stack.throwaway())
        _settle_in(home)
        _step("Postgres and Valkey start, from wheels, in a folder that is gone at the end")
        started = time.monotonic()
        servers = stack.up(home)
        migrate.upgrade(sqlalchemy_url(servers.database_url))
        print(f"They took {time.monotonic() - started:.1f} s, the schema included.", flush=True)
        model = held.enter_context(_local_model(home) if is_local else _model(home))
        _step(f"A worker starts, and a turn for {model}")
        folder = home / "demo"
        demo_script.write_workspace(folder, seed=seed)
        worker = held.enter_context(Worker(sqlalchemy_url(servers.database_url), home))
        task = _SMALL if is_local else _REPORT
        print(f"The task: {task.prompt}\n", flush=True)
        client = held.enter_context(connecting.client())
        overrides = {"workspace": str(folder), "tools": ",".join(task.tools)}
        shown = Killing(screen.choose(), worker) if kills else screen.choose()
        code = turns.watch_to_end(client, lambda: client.submit(task.prompt, overrides=overrides), shown)
        (turn,) = views.turns(client.database)
        task.tell(folder, _tell_origins(client, turn.turn_id), turn.output_text or "")
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
    policy = f"demo={demo_script.__name__}:policy"
    with served("ops.dev.scripted_provider", "--delay", str(_PAUSE_S), "--policy", policy) as told:
        _configure(home, told["openai_url"], "scripted-demo")
        yield f"a scripted model at {told['openai_url']} (set OPENAI_API_KEY or another for a real one)"


@contextmanager
def _local_model(home: Path) -> Generator[str]:
    """The small real model, and what to expect of it; its name for people."""
    with served("ops.dev.local_model") as told:
        _configure(home, told["openai_url"], told["model"])
        print(local_model.NOTE, flush=True)
        yield f"{told['model']} at {told['openai_url']}"


def _configure(home: Path, url: str, model: str) -> None:
    config = home / "perdure.toml"
    config.write_text(_CONFIG.format(url=url, model=model), "utf-8")
    os.environ["PERDURE_CONFIG"] = str(config)


def _tell_origins(client: Client, turn_id: UUID) -> list[str]:
    """Show what each tool was asked and what it said, as Postgres has it; returns what they said."""
    _step("Where the numbers come from: the turn's calls, as they are stored in Postgres")
    messages = [found.message for found in views.history(client.database, turn_id)]
    results = {b.id: b.content for m in messages for b in m.content if isinstance(b, Result)}
    for call in (b for m in messages for b in m.content if isinstance(b, Call)):
        arguments, result = _short(call.arguments), _short(results.get(call.id, "(no result)"))
        print(notices.one_line(f"  {call.name}({arguments}) → {result}"))
    return list(results.values())


def _tell_report(folder: Path, _results: Sequence[str], _answer: str) -> None:
    """The file that the turn has written, and whether a computation apart from the turn comes to the same numbers."""
    reports = sorted(folder.glob("*.md"))
    if not reports:
        print("The turn has written no report.")
        return
    _step(f"The report, {reports[0].name}")
    report = reports[0].read_text("utf-8", "replace")
    print(notices.printable(report))
    true = demo_script.expected(folder)
    right = [name for name, value in true.items() if str(value) in report.replace(",", "")]
    print(f"{len(right)} of {len(true)} numbers are those that a computation apart from the turn comes to.")


def _tell_small(_folder: Path, results: Sequence[str], answer: str) -> None:
    """How far the local model got: its expressions decide over the first number, its sentences over the second."""
    computed, told = small_task.true_numbers_in(results), small_task.true_numbers_in([answer])
    count = len(small_task.QUESTIONS)
    print(f"\nOf {count} true numbers, the calculator gave {computed} and the model's words hold {told}.")


_REPORT = Task(demo_script.TASK, demo_script.TOOLS, _tell_report)
_SMALL = Task(small_task.TASK, small_task.TOOLS, _tell_small)


def _short(text: str, most: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _step(title: str) -> None:
    print(f"\n── {title}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
