"""Real `perdure worker` processes, and what they use of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from ops.bench.perdure_turns import PROVIDER
from ops.bench.stage import REPOSITORY, Stage

_CONFIG = """
[providers.{provider}]
api = "openai-chat"
base_url = "{url}"

[agents.default]
model = "{provider}:any"
"""


class Worker:
    """One `perdure worker`, with as many processes as it is told to have. Close it at the end."""

    def __init__(self, stage: Stage, folder: Path, *, processes: int = 1, concurrency: int = 150) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "perdure.toml"
        config.write_text(_CONFIG.format(provider=PROVIDER, url=stage.model.openai_url))
        self._log_file = folder / f"worker-{time.monotonic_ns()}.log"
        self._processes = processes
        command = ["--processes", str(processes), "--concurrency", str(concurrency)]
        with self._log_file.open("w") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "workers.cli.main", "worker", *command],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(stage, folder, config),
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    def wait_until_ready(self) -> None:
        """It takes wakes, and has imported what it will need."""
        wait_until(self._is_ready, "the worker is ready", tell=self)
        before = self.cpu_s()
        while (now := self._cpu_s_after(1.0)) - before > 0.15 * self._processes:
            before = now

    def cpu_s(self) -> float:
        return sum(t.user + t.system for t in (p.cpu_times() for p in self._tree()))

    def pss_mb(self) -> float:
        """Memory of all its processes; what they share counts once."""
        return sum(p.memory_full_info().pss for p in self._tree()) / 1e6

    def kill(self) -> None:
        """SIGKILL, as when the machine runs out of memory."""
        for process in self._tree():
            process.kill()
        self._popen.wait()

    def close(self) -> None:
        if self._popen.poll() is None:
            self.kill()

    def _is_ready(self) -> bool:
        if self._popen.poll() is not None:
            raise RuntimeError(f"the worker has ended:\n{self.log}")
        return self.log.count('"worker.ready"') >= self._processes

    def _tree(self) -> Sequence[psutil.Process]:
        own = psutil.Process(self._popen.pid)
        return [own, *own.children(recursive=True)]

    def _cpu_s_after(self, seconds: float) -> float:
        time.sleep(seconds)
        return self.cpu_s()


def wait_until(
    holds: Callable[[], bool], what: str, *, timeout_s: float = 120.0, every_s: float = 0.05, tell: Worker | None = None
) -> None:
    """Raises TimeoutError, with what `tell` has logged."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}\n{tell.log if tell else ''}")
        time.sleep(every_s)


def _environment(stage: Stage, folder: Path, config: Path) -> dict[str, str]:
    """Ours, without what could lead a worker to another installation or provider."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "OPENAI_", "ANTHROPIC_"))
    }
    return kept | {
        "PERDURE_DATABASE_URL": stage.database_url,
        "PERDURE_REDIS_URL": stage.redis_url,
        "PERDURE_CONFIG": str(config),
        "PERDURE_HOME": str(stage.home),
        "PERDURE_WORKSPACE": str(folder / "workspace"),
    }
