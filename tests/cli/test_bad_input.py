"""Whatever is asked wrongly is answered in one sentence with the right exit code, no traceback, and nothing written."""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from orchestration.interrupting import interrupt
from persistence import submission, views
from persistence.database import Database
from persistence.records.agent import AgentSettings
from persistence.submission import Request
from tests.cli.bench import Done
from workers.settings import libpq_url

Cli: TypeAlias = Callable[..., Done]

# Fixed: the parallel test processes must collect the same names.
NOBODY = "0198c0de-7a11-7c3e-9a52-3f2b8f6a1c04"
TABLES = ("turns", "sessions", "agents", "messages", "inbox", "events", "deliveries")


def refuses(done: Done, code: int, *words: str) -> None:
    """One line on stderr that says all of `words`, and nothing else anywhere."""
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("perdure: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err
    assert "Traceback" not in done.err


def rows(database: Database) -> dict[str, int]:
    return {table: database.one(f"SELECT count(*) AS n FROM {table}")["n"] for table in TABLES}


WRONG_USAGE = [
    (("nonsense",), "nonsense"),
    (("submit",), "PROMPT"),
    (("submit", "hi", "--nonsense"), "--nonsense"),
    (("submit", "hi", "--priority", "high"), "--priority"),
    (("submit", "hi", "--priority", "40000"), "--priority"),
    (("submit", "hi", "--queue", "slow"), "--queue"),
    (("submit", "hi", "--set", "iterations"), "--set key=value"),
    (("submit", "hi", "--session", "7"), "'7' is not a session id"),
    (("run", "hi", "--session", "7"), "'7' is not a session id"),
    (("show", "7"), "'7' is not a turn id"),
    (("history", "7"), "'7' is not a session or turn id"),
    (("events", "7"), "'7' is not a turn id"),
    (("interrupt", "7"), "'7' is not a turn id"),
    (("steer", "7", "hurry"), "'7' is not a turn id"),
    (("steer", NOBODY, " "), "the text is empty"),
    (("resume", "7"), "'7' is not a turn id"),
    (("resume", NOBODY, "--cost", "nan"), "--cost 2.50"),
    (("resume", NOBODY, "--cost", "-1"), "--cost 2.50"),
    (("resume", NOBODY, "--iterations", "-1"), "--iterations"),
    (("list", "--status", "asleep"), "--status"),
    (("list", "--session", "7"), "'7' is not a session id"),
    (("list", "--limit", "0"), "--limit"),
    (("worker", "--queues", "slow"), "interactive,batch"),
    (("worker", "--queues", ","), "interactive,batch"),
    (("worker", "--only", "7"), "'7' is not a turn id"),
    (("worker", "--processes", "0"), "--processes"),
]


@pytest.mark.parametrize(("words", "said"), WRONG_USAGE, ids=[" ".join(words) for words, _ in WRONG_USAGE])
def test_wrong_usage_is_told_before_any_server_is_looked_for(cli: Cli, words: tuple[str, ...], said: str) -> None:
    refuses(cli(*words), 64, said)


REFUSED = [
    (("submit", "hi", "--agent", "nobody"), ("There is no agent 'nobody'", "default, brief, odd")),
    (("run", "hi", "--agent", "nobody"), ("There is no agent 'nobody'", "default, brief, odd")),
    (("submit", "hi", "--set", "model=nowhere:some-model"), ("no provider 'nowhere' is configured", "main")),
    (("submit", "hi", "--set", "model=some-model"), ("names no provider", "provider:model")),
    (
        ("submit", "hi", "--set", "tools=nope"),
        ("--set tools=nope: ", "no toolset and no module 'nope'", "calculator, files, history, time"),
    ),
    (("submit", "hi", "--agent", "odd"), ("perdure.toml: agents.odd.tools: ", "no toolset and no module 'nope'")),
    (
        ("submit", "hi", "--agent", "odd", "--set", "tools=time"),
        ("perdure.toml: agents.odd.context: ", "No context source"),
    ),
    (("submit", "hi", "--set", "context=nope"), ("No context source 'nope' is here", '"file:notes.md"')),
    (("submit", "hi", "--set", "context=no_such:f"), ("'no_such:f' cannot be imported",)),
    (("submit", "hi", "--set", "context=file:/etc/passwd"), ("is not inside the workspace",)),
    (("run", "hi", "--set", "tools=calculator:nope"), ("'nope'", "does not exist", "calculate")),
    (("submit", "hi", "--set", "iteration=3"), ("did you mean iterations?",)),
    (("submit", "hi", "--set", "iterations=many"), ("iterations", "many")),
    (("submit", "hi", "--set", "iterations=99999999999"), ("iterations", "less than or equal to 1000000000")),
    (("submit", "hi", "--set", "max_tokens_total=99999999999999999999"), ("max_tokens_total",)),
    (("submit", "hi", "--set", "deadline_s=1e300"), ("deadline_s", "less than or equal to")),
    (("submit", "hi", "--set", "max_cost_usd=1e300"), ("max_cost_usd",)),
    (("submit", "hi", "--set", "max_cost_usd=1"), ("no price of 'main:scripted-answer'", '[prices."scripted-answer"]')),
    (("submit", "hi", "--session", NOBODY), (f"no session {NOBODY}",)),
    (("submit", "  "), ("the prompt is empty",)),
    (("show", NOBODY), (f"no turn {NOBODY}", "perdure list")),
    (("history", NOBODY), (f"no session or turn {NOBODY}",)),
    (("events", NOBODY), (f"no turn {NOBODY}",)),
    (("events", NOBODY, "--follow"), (f"no turn {NOBODY}",)),
    (("interrupt", NOBODY), (f"no turn {NOBODY}",)),
    (("steer", NOBODY, "hurry"), (f"turn {NOBODY} has ended or is unknown",)),
    (("resume", NOBODY), (f"no turn {NOBODY}",)),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_cannot_be_done_is_refused_with_its_reason_and_nothing_is_written(
    asked: Cli, database: Database, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    before = rows(database)

    done = asked(*words)

    refuses(done, 1, *said)
    assert rows(database) == before


def test_an_empty_stdin_is_an_empty_prompt(asked: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))

    refuses(asked("submit", "-"), 1, "the prompt is empty")


def test_a_turn_that_has_not_ended_cannot_be_resumed_and_one_that_has_cannot_be_steered(
    asked: Cli, database: Database
) -> None:
    turn_id = submission.submit(database, Request("hi", AgentSettings("default", "main:some-model"))).turn_id
    refuses(asked("resume", str(turn_id)), 1, f"turn {turn_id} is queued", "only a turn that has ended")

    interrupt(database, turn_id)

    refuses(asked("steer", str(turn_id), "hurry"), 1, f"turn {turn_id} has ended")


def test_a_key_that_stands_for_another_request_is_refused(asked: Cli, database: Database) -> None:
    agent = AgentSettings("default", "main:some-model")
    turn_id = submission.submit(database, Request("hi", agent, idempotency_key="k1")).turn_id
    before = rows(database)

    refuses(asked("submit", "something else", "--idempotency-key", "k1"), 1, "'k1'", str(turn_id))
    assert rows(database) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agents.default\n", "not valid TOML"),
        ("[agents.default]\nmodl = 'main:x'\n", "did you mean model?"),
        ("[agents.default]\nmodel = 'nowhere:x'\n", "no provider 'nowhere'"),
        (None, "there is no such file"),
    ],
)
@pytest.mark.parametrize("command", [("submit", "hi"), ("up", "--detach")])
def test_a_broken_configuration_is_named_with_its_fault(
    asked: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, said: str, command: tuple[str, ...]
) -> None:
    file = tmp_path / "broken.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("PERDURE_CONFIG", str(file))

    refuses(asked(*command), 1, str(file), said)


def test_without_any_model_the_ways_to_have_one_are_told(asked: Cli, tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").unlink()

    refuses(asked("submit", "hi"), 1, "No model is configured", "OPENAI_API_KEY", "perdure.toml")


def test_an_address_that_is_none_is_refused_without_being_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", "mysql://root:hunter2@db/x")

    done = cli("list")

    refuses(done, 1, "PERDURE_DATABASE_URL is not a Postgres address")
    assert "hunter2" not in done.err


EVERY_DOOR = [
    ("list",),
    ("show", NOBODY),
    ("submit", "hi"),
    ("run", "hi"),
    ("steer", NOBODY, "hurry"),
    ("resume", NOBODY),
    ("migrate",),
]


@pytest.mark.parametrize("words", EVERY_DOOR, ids=[words[0] for words in EVERY_DOOR])
def test_without_servers_every_command_says_how_to_have_some(cli: Cli, words: tuple[str, ...]) -> None:
    refuses(cli(*words), 69, "perdure up", "PERDURE_DATABASE_URL")


@pytest.mark.parametrize("words", EVERY_DOOR, ids=[words[0] for words in EVERY_DOOR])
def test_an_unreachable_postgres_is_told_by_every_command(
    asked: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", at(database_url, port=9))

    refuses(asked(*words), 69, "Postgres cannot be", "127.0.0.1")


def test_a_refused_login_is_told_without_the_password(
    asked: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", at(database_url, password="hunter2"))

    done = asked("list")

    refuses(done, 69, "authentication failed")
    assert "hunter2" not in done.err


@pytest.mark.parametrize("words", [w for w in EVERY_DOOR if w != ("migrate",)], ids=lambda words: words[0])
def test_a_database_without_a_schema_is_told_to_be_migrated(
    asked: Cli, monkeypatch: pytest.MonkeyPatch, empty_database_url: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", empty_database_url)

    refuses(asked(*words), 69, "no Perdure schema yet", "`perdure migrate`")


def test_another_schema_is_told_to_be_migrated_and_nothing_is_written(
    asked: Cli, monkeypatch: pytest.MonkeyPatch, fresh_database_url: str
) -> None:
    with psycopg.connect(libpq_url(fresh_database_url), autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    monkeypatch.setenv("PERDURE_DATABASE_URL", fresh_database_url)

    refuses(asked("submit", "hi"), 69, "schema 0000", "`perdure migrate`")

    with psycopg.connect(libpq_url(fresh_database_url)) as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (0,)


@pytest.mark.parametrize("words", [("submit", "hi"), ("list",), ("migrate",)], ids=lambda words: words[0])
def test_a_postgres_that_is_too_old_is_named(
    asked: Cli, monkeypatch: pytest.MonkeyPatch, database_url: str, words: tuple[str, ...]
) -> None:
    with as_version_13(database_url) as url:
        monkeypatch.setenv("PERDURE_DATABASE_URL", url)

        refuses(asked(*words), 69, "Postgres 13 is too old", "14 or newer")


@pytest.mark.parametrize(
    ("address", "login", "said"),
    [("0.0.0.0", "", "would be open to all"), ("127.0.0.1", "only-a-user", "user:password")],
)
def test_flower_is_never_open_to_others(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, address: str, login: str, said: str
) -> None:
    monkeypatch.setenv("PERDURE_FLOWER_AUTH", login)

    done = cli("flower", "--address", address, "--port", "0")

    refuses(done, 1, said, "PERDURE_FLOWER_AUTH")
    assert "only-a-user" not in done.err


def test_what_is_no_mistake_of_the_caller_shows_its_traceback(asked: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bug(Exception): ...

    def breaks(*_: object, **__: object) -> None:
        raise Bug

    monkeypatch.setattr(views, "turns", breaks)

    with pytest.raises(Bug):
        asked("list")


def at(url: str, *, port: int | None = None, password: str | None = None) -> str:
    """The same address with another port or password."""
    parts = urlsplit(url)
    place = f"{parts.username}:{password or parts.password}@{parts.hostname}:{port or parts.port}"
    return urlunsplit(parts._replace(netloc=place))


@contextmanager
def as_version_13(url: str) -> Iterator[str]:
    """The same server behind a relay in whose answers its version number is that of Postgres 13."""
    with psycopg.connect(libpq_url(url)) as connection:
        row = connection.execute("SHOW server_version_num").fetchone()
    assert row is not None
    true, parts = str(row[0]).encode(), urlsplit(url)

    def relay(source: socket.socket, target: socket.socket, old: bytes, new: bytes) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data.replace(old, new))
        except OSError:
            pass  # the other direction has closed it
        target.close()

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection((parts.hostname or "", parts.port or 0))
            threading.Thread(target=relay, args=(client, server, b"", b""), daemon=True).start()
            threading.Thread(target=relay, args=(server, client, true, b"130018"), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield at(url, port=listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
