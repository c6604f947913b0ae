"""Where Postgres and Redis are: in the environment, or started here by `perdure up`."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestration.errors import PerdureError
from workers.settings import Settings, sqlalchemy_url

_VARIABLES = {"Postgres": "PERDURE_DATABASE_URL", "Redis": "PERDURE_REDIS_URL"}


class ServersMissing(PerdureError):
    """No Postgres or no Redis is known; the sentence says how to get one."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """`database_url` is SQLAlchemy's. Both hold passwords and are never shown."""

    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)


def look_up(settings: Settings, *, may_lack_redis: bool = False) -> Addresses:
    """Raises ServersMissing, naming it, when an address is not set and no server of ours runs.

    With `may_lack_redis` a Redis of ours that has stopped is as good as one of yours that does not answer: its address is
    given, for it comes back there, and whoever asks goes on through Postgres.
    """
    database_url, redis_url = settings.database_url, settings.redis_url
    if database_url is None or redis_url is None:
        from workers.stack import servers  # only for people without servers of their own

        database_url = database_url or servers.running_postgres(settings.home)
        redis_url = redis_url or servers.running_valkey(settings.home)
        if redis_url is None and database_url is not None and may_lack_redis:
            redis_url = servers.stopped_valkey(settings.home)
    if database_url is not None and redis_url is not None:
        return Addresses(sqlalchemy_url(database_url), redis_url)
    missing = {"Postgres": database_url, "Redis": redis_url}
    names = [name for name, url in missing.items() if url is None]
    variables = [_VARIABLES[name] for name in names]
    raise ServersMissing(
        f"No {' and no '.join(names)} is running here: call `perdure up`, or set {' and '.join(variables)}"
    )
