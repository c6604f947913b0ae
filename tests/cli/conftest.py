"""Places for the command line, and a way to call it inside the test process, where it is fast."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from persistence.database import Database
from tests.cli.bench import API_KEY, CONFIG, Done, Place
from tests.cli.bench import place as open_place
from workers.cli.main import main


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failed test what the worker of its place has said."""
    report = yield
    place = getattr(item, "funcargs", {}).get("place")
    if report.failed and isinstance(place, Place) and place.worker_log.exists():
        report.sections.append(("worker", place.worker_log.read_text("utf-8", "replace")[-5000:]))
    return report


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Servers and a worker, started by `perdure up --detach` and stopped by `perdure down`."""
    with open_place(tmp_path_factory.mktemp("place")) as made:
        up = made.call("up", "--detach")
        assert up.code == 0, up.err
        yield made


@pytest.fixture(scope="module")
def servers_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("servers")) as made:
        up = made.call("up", "--detach", "--services-only")
        assert up.code == 0, up.err
        yield made


@pytest.fixture
def quiet_place(servers_only: Place) -> Iterator[Place]:
    """Servers without a worker, which a test may stop and start; whatever it starts is ended after it."""
    yield servers_only
    servers_only.end_all()


@pytest.fixture
def bare_place(tmp_path: Path) -> Iterator[Place]:
    """A home of this test's own in which nothing runs."""
    with open_place(tmp_path) as made:
        yield made


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., Done]]:
    """Calls the command line in this process. Set its environment with monkeypatch; no server is known to it at first."""
    config = tmp_path / "perdure.toml"
    config.write_text(CONFIG.format(url="http://127.0.0.1:9/v1"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("PERDURE_DATABASE_URL", "PERDURE_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLI_API_KEY", API_KEY)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def call(*words: str) -> Done:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    yield call
    root.handlers, root.level = handlers, level


@pytest.fixture
def reads(place: Place, cli: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The command line in this process, before the servers of `place`. For commands that send nothing to Redis."""
    monkeypatch.setenv("PERDURE_HOME", str(place.home))
    monkeypatch.setenv("PERDURE_CONFIG", str(place.config))
    return cli


@pytest.fixture
def asked(
    cli: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, database_url: str, redis_url: str
) -> Callable[..., Done]:
    """The command line in this process, before servers that are all right, without a worker."""
    monkeypatch.setenv("PERDURE_DATABASE_URL", database_url)
    monkeypatch.setenv("PERDURE_REDIS_URL", redis_url)
    return cli


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, connections=1, name="test")
    yield opened
    opened.close()
