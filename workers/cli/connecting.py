"""Ways in for the commands: checked connections, so that a database that cannot be used is told before anything is written."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from persistence import migrate
from persistence.database import Database
from workers import servers
from workers import settings as environment

if TYPE_CHECKING:
    from uuid import UUID

    from workers.client import Client
    from workers.live.reader import LiveReader


@contextmanager
def database() -> Generator[Database]:
    """Postgres, to read from. Raises ServersMissing, DatabaseUnavailable or DatabaseUnfit."""
    found = servers.look_up(environment.load(), may_lack_redis=True)
    opened = Database(found.database_url, connections=2, name="perdure cli")
    try:
        check(opened)
        yield opened
    finally:
        opened.close()


@contextmanager
def client() -> Generator[Client]:
    """The door that starts, stops and resumes turns. Raises ConfigError and what `database` raises."""
    from workers.client import Client  # brings Celery and Redis along, which reading does without

    with Client.open() as opened:
        check(opened.database)
        yield opened


def live(turn_id: UUID) -> LiveReader:
    """What a turn says while it goes on. Raises ServersMissing."""
    from workers.live.reader import LiveReader  # brings Redis along

    return LiveReader(servers.look_up(environment.load(), may_lack_redis=True).redis_url, turn_id)


def check(opened: Database) -> None:
    """Raises DatabaseUnavailable, or DatabaseUnfit for a server that is too old or a schema that is not ours."""
    opened.check()
    migrate.check_schema(opened.url)
