"""What every benchmark runs on: Postgres and Valkey in a home of their own, and a model server in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from persistence import migrate
from workers import stack

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stage:
    """The servers of one benchmark; fsync is on, as in production."""

    home: Path
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    model: ModelServer

    def postgres_cpu_s(self) -> float:
        """CPU that Postgres has used so far, its ended backends included."""
        postmaster = psutil.Process(stack.pids(self.home)[stack.POSTGRES])
        own = postmaster.cpu_times()
        spent = own.user + own.system + own.children_user + own.children_system
        for backend in postmaster.children():
            try:
                times = backend.cpu_times()
            except psutil.NoSuchProcess:  # it ended meanwhile, and its parent will count it
                continue
            spent += times.user + times.system
        return spent

    def redis_cpu_s(self) -> float:
        """CPU that the Redis-protocol server has used so far."""
        own = psutil.Process(stack.pids(self.home)[stack.VALKEY]).cpu_times()
        return own.user + own.system


class ModelServer:
    """The scripted provider as a process, on the last core. It answers at once and keeps nothing."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops.dev.scripted_provider", "--lean"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url: str = json.loads(self._process.stdout.readline())["url"]
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(self._process.pid, cores[-1:])

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def script(self, name: str, script: dict[str, Any]) -> str:
        """Register a script (see ops.dev.scripted_provider.script_json); the name of its model."""
        self._ask("POST", f"/_script/{name}", script)
        return f"scripted-{name}"

    def waiting_at(self, gate: str) -> int:
        """How many model calls wait at the gate."""
        return int(self._ask("GET", f"/_gate/{gate}")["waiting"])

    def open(self, gate: str) -> None:
        self._ask("POST", f"/_gate/{gate}")

    def cpu_s(self) -> float:
        return float(self._ask("GET", "/_cpu")["process_s"])

    def requests(self) -> int:
        """How many model calls it has had."""
        return int(self._ask("GET", "/_cpu")["requests"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            data: dict[str, Any] = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"the model server refused {method} {path}: {data}")
        return data


@contextmanager
def stage() -> Generator[Stage]:
    """Everything is stopped and removed at the end, whatever happens."""
    with stack.throwaway() as home:
        servers = stack.up(home)
        migrate.upgrade(servers.database_url)
        model = ModelServer()
        try:
            yield Stage(home, servers.database_url, servers.redis_url, model)
        finally:
            model.close()
