"""Start what is missing of Postgres and Valkey, find it, and stop it. The servers outlive whoever started them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from workers.stack import postgres, state, valkey

POSTGRES = postgres.NAME
VALKEY = valkey.NAME
EVERYTHING = (POSTGRES, VALKEY)


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are, with their passwords (not in the repr), and which of them this call has started."""

    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    started: tuple[str, ...] = ()


def up(home: Path, *, database_url: str | None = None, redis_url: str | None = None) -> Servers:
    """Start what is missing, and return when it takes connections. A given address is used, nothing is started for it.

    May be called at any time and by any number of processes. What a killed starter left behind is taken over. A server
    comes back on the port it had, unless somebody else has taken that. Raises StackError.
    """
    started: list[str] = []
    if database_url is None or redis_url is None:
        home = home.resolve()
        with state.locked(home) as lock:
            if database_url is None:
                access, is_new = postgres.ensure(home, lock)
                database_url = postgres.url(access)
                started += [POSTGRES] if is_new else []
            if redis_url is None:
                access, is_new = valkey.ensure(home, lock)
                redis_url = valkey.url(access)
                started += [VALKEY] if is_new else []
    return Servers(database_url, redis_url, tuple(started))


def find(home: Path, *, database_url: str | None = None, redis_url: str | None = None) -> Servers | None:
    """The servers as `up` would return them, if they run already; None where one does not. Nothing is started."""
    database_url = database_url or running_postgres(home)
    redis_url = redis_url or running_valkey(home)
    return None if database_url is None or redis_url is None else Servers(database_url, redis_url)


def running_postgres(home: Path) -> str | None:
    """The address of the Postgres of `home`, if it runs."""
    access = state.read(home.resolve()).get(POSTGRES)
    return postgres.url(access) if access is not None and postgres.find(home.resolve()) is not None else None


def running_valkey(home: Path) -> str | None:
    """The address of the Valkey of `home`, if it runs."""
    access = state.read(home.resolve()).get(VALKEY)
    return valkey.url(access) if access is not None and valkey.find(home.resolve()) is not None else None


def stopped_valkey(home: Path) -> str | None:
    """Where the Valkey of `home` was before it stopped, and comes back unless somebody else has taken its port."""
    access = state.read(home.resolve()).get(VALKEY)
    return None if access is None else valkey.url(access)


def down(home: Path, *, only: Collection[str] = EVERYTHING) -> tuple[str, ...]:
    """Stop the servers of `home` in order and say which ran. What they hold is on disk then. Raises StackError."""
    home = home.resolve()
    if not home.is_dir():
        return ()
    stopped: list[str] = []
    with state.locked(home):
        if POSTGRES in only and postgres.stop(home):
            stopped.append(POSTGRES)
        if VALKEY in only and valkey.stop(home):
            stopped.append(VALKEY)
    return tuple(stopped)


def pids(home: Path) -> dict[str, int]:
    """The process numbers of the servers of `home` that live."""
    home = home.resolve()
    found = {POSTGRES: postgres.find(home), VALKEY: valkey.find(home)}
    return {name: process.pid for name, process in found.items() if process is not None}


def logs(home: Path) -> dict[str, Path]:
    """Where the servers of `home` write what they have to say."""
    return {POSTGRES: postgres.log(home.resolve()), VALKEY: valkey.log(home.resolve())}
