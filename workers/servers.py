"""Where Postgres and Redis are: in the environment, or started here by `perdure up`."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestration.errors import PerdureError
from workers.settings import Settings, sqlalchemy_url


class ServersMissing(PerdureError):
    """No Postgres or no Redis is known; the sentence says how to get one."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """`database_url` is SQLAlchemy's. Both hold passwords and are never shown."""

    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)


def look_up(settings: Settings) -> Addresses:
    """Raises ServersMissing when an address is not set and no server of ours runs."""
    if settings.database_url and settings.redis_url:
        return Addresses(settings.database_url, settings.redis_url)
    from workers import stack  # only for people without servers of their own

    found = stack.find(settings.home, database_url=settings.database_url, redis_url=settings.redis_url)
    if found is None:
        missing = [
            name
            for name, url in (
                ("PERDURE_DATABASE_URL", settings.database_url),
                ("PERDURE_REDIS_URL", settings.redis_url),
            )
            if not url
        ]
        raise ServersMissing(f"No server is running here: call `perdure up`, or set {' and '.join(missing)}")
    return Addresses(sqlalchemy_url(found.database_url), found.redis_url)
