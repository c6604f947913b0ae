"""The embedded servers: started once, found again, taken over from a dead starter, and gone after `down`."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from workers import stack
from workers.settings import libpq_url
from workers.stack import accounts, binaries, processes

UP = "import sys, pathlib; from workers import stack; print(stack.up(pathlib.Path(sys.argv[1])).started)"
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def home() -> Generator[Path]:
    with stack.throwaway() as home:
        yield home


@pytest.fixture(scope="module")
def running() -> Generator[tuple[Path, stack.Servers]]:
    """Servers that several tests look at and none changes, started with a secret in the environment."""
    with stack.throwaway() as home, pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENAI_API_KEY", "hunter2")
        yield home, stack.up(home)


def start_elsewhere(home: Path, code: str = UP) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_and_read(servers: stack.Servers) -> tuple[object, object]:
    with psycopg.connect(libpq_url(servers.database_url), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    return (row and row[0]), redis.Redis.from_url(servers.redis_url).incr("kept")


def test_both_servers_start_keep_their_data_over_a_restart_and_come_back_where_they_were(home: Path) -> None:
    first = stack.up(home)
    assert write_and_read(first) == (1, 1)
    assert stack.down(home) == ("postgres", "valkey")
    assert stack.find(home) is None

    second = stack.up(home)

    assert (second.database_url, second.redis_url) == (first.database_url, first.redis_url)
    assert write_and_read(second) == (2, 2)


def test_starting_twice_starts_once(running: tuple[Path, stack.Servers]) -> None:
    home, first = running
    pids = stack.pids(home)

    second = stack.up(home)

    assert (first.started, second.started) == (("postgres", "valkey"), ())
    assert (second.database_url, second.redis_url) == (first.database_url, first.redis_url)
    assert stack.pids(home) == pids
    found = stack.find(home)
    assert found is not None
    assert (found.database_url, found.redis_url) == (first.database_url, first.redis_url)


def test_of_several_processes_that_start_at_once_one_starts(home: Path) -> None:
    starters = [start_elsewhere(home) for _ in range(3)]

    said = [starter.communicate(timeout=120) for starter in starters]

    assert [starter.returncode for starter in starters] == [0, 0, 0], said
    assert sorted(out.strip() for out, _ in said) == ["('postgres', 'valkey')", "()", "()"]


def test_a_given_address_is_used_and_nothing_is_started_for_it(home: Path) -> None:
    servers = stack.up(home, database_url="postgresql://elsewhere/x", redis_url="redis://elsewhere/0")

    assert (servers.database_url, servers.redis_url) == ("postgresql://elsewhere/x", "redis://elsewhere/0")
    assert (servers.started, stack.pids(home)) == ((), {})


def test_only_the_server_whose_address_is_not_given_is_started(home: Path) -> None:
    servers = stack.up(home, database_url="postgresql://elsewhere/x")

    assert servers.started == ("valkey",)
    assert set(stack.pids(home)) == {"valkey"}


# The starter kills itself at the first chance after Postgres was launched: nothing is said of it but its pid file.
KILLED_STARTER = """
import os, pathlib, signal, sys
from workers import stack
from workers.stack import processes
launch = processes.launch
def launch_and_die(*words, **more):
    launch(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)
processes.launch = launch_and_die
stack.up(pathlib.Path(sys.argv[1]))
"""


def test_servers_of_a_starter_that_was_killed_are_taken_over(home: Path) -> None:
    starter = start_elsewhere(home, KILLED_STARTER)
    starter.communicate(timeout=120)
    assert starter.returncode == -signal.SIGKILL
    postmaster = stack.pids(home)["postgres"]

    servers = stack.up(home)

    assert servers.started == ("valkey",)
    assert stack.pids(home)["postgres"] == postmaster
    assert write_and_read(servers) == (1, 1)


def test_a_starter_that_dies_while_it_makes_the_data_leaves_nothing_half_made(home: Path) -> None:
    starter = start_elsewhere(home)
    try:
        assert processes.wait_until(lambda: (home / "postgres" / "data.new").exists(), seconds=60)
    finally:
        starter.kill()
        starter.communicate()

    assert write_and_read(stack.up(home)) == (1, 1)


@pytest.mark.parametrize("name", ["postgres", "valkey"])
def test_a_server_that_was_killed_is_started_again_with_what_was_committed(name: str, home: Path) -> None:
    servers = stack.up(home)
    assert write_and_read(servers) == (1, 1)
    victim = psutil.Process(stack.pids(home)[name])
    victim.kill()
    assert processes.wait_until(lambda: name not in stack.pids(home), seconds=10)

    again = stack.up(home)

    assert again.started == (name,)
    assert write_and_read(again) == (2, 2)


def test_a_pid_file_whose_number_another_program_has_is_no_server(home: Path) -> None:
    stack.up(home)
    stack.down(home)
    # Under the servers' own account: only such a process makes Postgres believe that it still runs.
    bystander = subprocess.Popen(["/bin/sleep", "60"], **accounts.choose().switch)
    try:
        for pid_file in (home / "postgres" / "pid", home / "valkey" / "pid"):
            pid_file.write_text(f"{bystander.pid}\n")
        # What a container finds that was killed and restarted: Postgres itself would refuse this.
        postmaster = home / "postgres" / "data" / "postmaster.pid"
        postmaster.write_text(f"{bystander.pid}\n{postmaster.parent}\n0\n1\n\n127.0.0.1\n        0         0\nready\n")
        accounts.choose().own(postmaster)

        assert stack.pids(home) == {}
        assert stack.down(home) == ()
        assert stack.up(home).started == ("postgres", "valkey")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_server_whose_port_was_taken_meanwhile_comes_back_on_another(home: Path) -> None:

    first = stack.up(home)
    stack.down(home)
    ports = [entry["port"] for entry in json.loads((home / "servers.json").read_text()).values()]
    with socket.create_server(("127.0.0.1", ports[0])), socket.create_server(("127.0.0.1", ports[1])):
        second = stack.up(home)

    assert second.database_url != first.database_url
    assert second.redis_url != first.redis_url
    assert write_and_read(second) == (1, 1)


def test_down_leaves_no_process_of_the_servers(home: Path) -> None:
    stack.up(home)
    servers = [psutil.Process(pid) for pid in stack.pids(home).values()]
    family = [*servers, *(child for server in servers for child in server.children(recursive=True))]
    assert len(family) > len(servers)

    stack.down(home)

    assert [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert stack.down(home) == ()


def test_one_server_can_be_stopped_alone(home: Path) -> None:
    stack.up(home)

    assert stack.down(home, only=[stack.VALKEY]) == ("valkey",)
    assert set(stack.pids(home)) == {"postgres"}


def test_the_servers_want_a_password_that_only_their_owner_can_read(running: tuple[Path, stack.Servers]) -> None:
    home, servers = running
    access = json.loads((home / "servers.json").read_text())
    passwords = {entry["password"] for entry in access.values()}

    assert stat.S_IMODE((home / "servers.json").stat().st_mode) == 0o600
    assert len(passwords) == 2
    assert not any(password in repr(servers) for password in passwords)
    for pid in stack.pids(home).values():
        shown = " ".join(psutil.Process(pid).cmdline())
        assert not any(password in shown for password in passwords)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://perdure:wrong@127.0.0.1:{access['postgres']['port']}/perdure")
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=access["valkey"]["port"]).get("x")


def test_the_servers_are_set_up_to_keep_what_they_are_given(running: tuple[Path, stack.Servers]) -> None:
    _, servers = running
    client = redis.Redis.from_url(servers.redis_url)

    with psycopg.connect(libpq_url(servers.database_url)) as connection:
        shown = {
            name: connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            for name in ("fsync", "synchronous_commit", "max_connections", "listen_addresses", "server_encoding")
        }
    assert {name: row and row[0] for name, row in shown.items()} == {
        "fsync": "on",
        "synchronous_commit": "on",
        "max_connections": "200",
        "listen_addresses": "127.0.0.1",
        "server_encoding": "UTF8",
    }
    assert client.config_get("appendfsync", "maxmemory-policy", "bind") == {
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "bind": "127.0.0.1",
    }


def test_the_servers_know_nothing_of_the_starters_environment(running: tuple[Path, stack.Servers]) -> None:
    home, _ = running

    environments = [psutil.Process(pid).environ() for pid in stack.pids(home).values()]

    assert len(environments) == 2
    assert not any("OPENAI_API_KEY" in environment for environment in environments)


def test_a_home_that_cannot_be_made_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(stack.StackError, match="set PERDURE_HOME") as told:
        stack.up(tmp_path / "file" / "home")

    assert "\n" not in str(told.value)


def test_data_of_another_postgres_is_not_touched(home: Path) -> None:
    data = home / "postgres" / "data"
    stack.up(home)
    stack.down(home)
    (data / "PG_VERSION").write_text("12\n")

    with pytest.raises(stack.StackError, match="was written by PostgreSQL 12"):
        stack.up(home)


def test_a_lost_password_is_told_and_the_data_is_not_touched(home: Path) -> None:
    stack.up(home)
    stack.down(home)
    (home / "servers.json").unlink()

    with pytest.raises(stack.StackError, match=r"servers\.json"):
        stack.up(home)

    assert (home / "postgres" / "data" / "PG_VERSION").exists()


OWNER = """
import os, pathlib, signal, sys
from workers import stack
with stack.throwaway() as home:
    stack.up(home)
    print(home, *stack.pids(home).values(), flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_a_throwaway_home_is_gone_however_its_owner_ends(name: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, name],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    said, _ = owner.communicate(timeout=120)
    home, *pids = said.split()

    assert owner.returncode != 0
    assert processes.wait_until(lambda: not Path(home).exists(), seconds=60)
    assert [pid for pid in pids if is_alive(int(pid))] == []


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the servers under another account")
def test_programs_that_the_servers_account_cannot_read_are_copied_once(home: Path, tmp_path: Path) -> None:
    account = accounts.choose()
    installed = next(binaries.postgres_candidates())
    closed = tmp_path / "closed"
    found = binaries.Found(closed / installed.program.relative_to(installed.base), closed, installed.parts)
    binaries.copy(installed, closed)
    closed.chmod(0o700)
    assert not account.can_run(found.program)

    program = binaries.runnable(found, account, home / "binaries" / "postgresql")
    inode = program.stat().st_ino
    again = binaries.runnable(found, account, home / "binaries" / "postgresql")

    assert account.can_run(program)
    assert (again, again.stat().st_ino) == (program, inode)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the servers under another account")
def test_a_home_that_the_servers_account_cannot_reach_is_told_in_one_sentence(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(stack.StackError, match="cannot reach"):
        stack.up(closed / "home")
