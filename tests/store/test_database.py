"""The pool: what becomes of a statement when Postgres goes away, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Generator

import psycopg
import pytest
from psycopg import errors

from persistence.database import Database, is_transient, patiently
from persistence.errors import DatabaseUnavailable
from tests.support.workbench import in_thread, wait_until

_OURS = "SELECT FROM pg_stat_activity WHERE application_name = 'the database under test'"


@pytest.fixture
def database(database_url: str) -> Generator[Database]:
    made = Database(database_url, connections=2, name="the database under test")
    yield made
    made.close()


@pytest.fixture
def other(database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


def terminate(other: psycopg.Connection) -> None:
    other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'the database under test'"
    )


def test_connections_that_the_server_ended_while_they_lay_idle_are_replaced_unseen(
    database: Database, other: psycopg.Connection
) -> None:
    with database.transaction(), database.transaction():
        pass  # two connections lie idle from here on

    terminate(other)
    wait_until(lambda: other.execute(f"{_OURS} AND state IS NOT NULL").fetchone() is None)

    assert [database.one("SELECT 1 AS n")["n"] for _ in range(3)] == [1, 1, 1]


def test_a_statement_that_is_cut_in_the_middle_has_an_unknown_outcome(
    database: Database, other: psycopg.Connection
) -> None:
    fetch = in_thread(lambda: database.rows("SELECT pg_sleep(30)"))
    wait_until(lambda: other.execute(f"{_OURS} AND wait_event = 'PgSleep'").fetchone() is not None)

    terminate(other)

    with pytest.raises(DatabaseUnavailable):
        fetch()


def test_a_server_that_is_not_there_is_unavailable_and_said_in_one_line() -> None:
    database = Database("postgresql+psycopg://perdure@127.0.0.1:1/perdure")

    with pytest.raises(DatabaseUnavailable) as caught:
        database.check()

    assert "\n" not in str(caught.value)
    database.close()


def test_a_mistake_of_ours_is_not_waited_for(database: Database) -> None:
    database.rows("CREATE TEMPORARY TABLE once (n int PRIMARY KEY)")
    database.rows("INSERT INTO once VALUES (1)")

    with pytest.raises(errors.UniqueViolation):
        database.rows("INSERT INTO once VALUES (1)")


def test_a_transaction_that_fails_leaves_nothing_and_its_connection_is_usable(database: Database) -> None:
    database.rows("CREATE TEMPORARY TABLE kept (n int)")

    def fail() -> None:
        with database.transaction() as transaction:
            transaction.rows("INSERT INTO kept VALUES (1)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with database.transaction() as transaction:
        transaction.rows("INSERT INTO kept VALUES (2)")

    assert [r["n"] for r in database.rows("SELECT n FROM kept")] == [2]


def test_what_ends_a_transaction_is_told_though_its_connection_is_lost(
    database: Database, other: psycopg.Connection
) -> None:
    def fail() -> None:
        with database.transaction() as transaction:
            transaction.rows("SELECT 1")
            terminate(other)
            wait_until(lambda: other.execute(f"{_OURS} AND state IS NOT NULL").fetchone() is None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert database.one("SELECT 1 AS n")["n"] == 1


def test_no_connection_is_left_in_a_transaction(database: Database, other: psycopg.Connection) -> None:
    with database.transaction() as transaction:
        transaction.rows("SELECT 1")
    database.rows("SELECT 1")

    states = other.execute(
        "SELECT DISTINCT state FROM pg_stat_activity WHERE application_name = 'the database under test'"
    ).fetchall()
    assert states == [("idle",)]


@pytest.mark.parametrize(
    ("error", "is_worth_waiting"),
    [
        (errors.DeadlockDetected(), True),
        (errors.SerializationFailure(), True),
        (errors.AdminShutdown(), True),
        (errors.CannotConnectNow(), True),
        (errors.DiskFull(), True),
        (errors.TooManyConnections(), True),
        (errors.LockNotAvailable(), True),
        (errors.ReadOnlySqlTransaction(), True),
        (errors.IoError(), True),
        (psycopg.OperationalError("the connection is closed"), True),
        (errors.UniqueViolation(), False),
        (errors.CheckViolation(), False),
        (errors.UndefinedColumn(), False),
        (psycopg.DataError("NUL"), False),
        (ValueError("not of Postgres"), False),
    ],
)
def test_what_waiting_may_cure_is_told_from_what_it_cannot(error: Exception, is_worth_waiting: bool) -> None:
    assert is_transient(error) is is_worth_waiting


def test_patience_lasts_until_the_database_is_back() -> None:
    left = [DatabaseUnavailable("away"), DatabaseUnavailable("away")]

    def attempt() -> str:
        if left:
            raise left.pop()
        return "back"

    assert patiently(attempt, give_up=lambda: False, pause_s=0.001) == "back"


def test_patience_ends_when_it_is_told_to() -> None:
    ends = threading.Event()
    attempts: list[int] = []

    def attempt() -> None:
        attempts.append(len(attempts))
        if len(attempts) == 3:
            ends.set()
        raise DatabaseUnavailable("away")

    with pytest.raises(DatabaseUnavailable):
        patiently(attempt, give_up=ends.is_set, pause_s=0.001)
    assert len(attempts) == 3


def test_who_finds_no_free_connection_waits_for_one(database: Database) -> None:
    with database.transaction(), database.transaction():
        fetch = in_thread(lambda: database.one("SELECT 1 AS n")["n"])

    assert fetch() == 1
