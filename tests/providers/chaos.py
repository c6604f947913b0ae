"""llmock beside a test: a chaos server that somebody else wrote. It breaks what it is told to, and grades its client."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from orchestration.providers.settings import Api
from tests.support.workbench import wait_until

_COMMAND = str(Path(sys.executable).parent / "llmock")
_START_S = 30.0


class Chaos:
    """One server, in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        # A connection for each request: one that lay idle may be ended by the server at the instant it is used again.
        self._http = httpx2.Client(base_url=url, timeout=30, limits=httpx2.Limits(max_keepalive_connections=0))

    def address(self, api: Api) -> str:
        """Where a client of this protocol finds it, without `/v1`."""
        return f"{self.url}/anthropic" if api is Api.ANTHROPIC else self.url

    def queue(self, model: str, behaviors: Sequence[Mapping[str, Any]]) -> None:
        """Let these befall the next requests for `model`."""
        made = [{**one, "match": {**one.get("match", {}), "model": model}} for one in behaviors]
        if made:
            self._http.post("/_llmock/scenario", json={"behaviors": made}).raise_for_status()

    def pending(self) -> list[dict[str, Any]]:
        """What has been queued and not befallen anybody yet; what lasts for ever stays."""
        found = self._http.get("/_llmock/scenario").raise_for_status().json()["pending"]
        return [one for one in found if one["times"] is not None]

    def requests(self, model: str) -> list[dict[str, Any]]:
        """The requests for a model, in the order in which they came."""
        found = self._http.get("/_llmock/requests").raise_for_status().json()["requests"]
        return [one for one in found if one["model"] == model]

    def verdict(self) -> dict[str, Any]:
        return self._http.get("/_llmock/verdict").raise_for_status().json()

    def report(self) -> subprocess.CompletedProcess[str]:
        """What `llmock report` says of everything that was asked so far, warnings counted as errors."""
        said = [_COMMAND, "report", "--strict", "--url", self.url]
        return subprocess.run(said, capture_output=True, text=True, timeout=60, check=False, env=_environment())

    def close(self) -> None:
        self._http.close()


@contextmanager
def chaos(*options: str) -> Iterator[Chaos]:
    """A server with these options of `llmock serve`, for as long as the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [_COMMAND, "serve", "--port", str(port), "--log-level", "warning", *options]
    process = subprocess.Popen(
        serve, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment(), cwd=Path(sys.prefix)
    )
    made = Chaos(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _answers(made.url, process), within_s=_START_S)
        yield made
    finally:
        made.close()
        process.kill()  # an orderly end would wait for the stalls that nobody waits for any more
        process.communicate(timeout=30)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"llmock did not start: {process.communicate()[1].decode()}")
    try:
        return httpx2.get(f"{url}/health").is_success
    except httpx2.TransportError:
        return False


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LLMOCK_")}
