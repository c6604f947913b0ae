"""Every PERDURE_ variable of the environment, read once into one frozen `Settings`.

Provider keys are not here: they stay in the environment until a request is made (see `ProviderSettings.keys`).
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from orchestration.errors import ConfigError

PREFIX = "PERDURE_"
DEFAULT_CONFIG = Path("perdure.toml")
# Names the root of all workspaces, so that workers on several hosts can tell whether theirs is the same.
WORKSPACE_ID_FILE = ".perdure-root"

_DRIVER = "postgresql+psycopg://"
_ACCEPTED = (_DRIVER, "postgresql://", "postgres://")
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """What a process is told by its environment. An empty variable counts as unset.

    Without `database_url` or `redis_url` the servers of `workers.stack` in `home` are meant.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")

    database_url: str | None = Field(default=None, repr=False)
    redis_url: str | None = Field(default=None, repr=False)
    config: Path = DEFAULT_CONFIG
    home: Path = Field(default_factory=lambda: default_home())
    workspace: Path = Field(default_factory=lambda data: data["home"] / "workspace")
    model: str | None = None
    base_url: str | None = Field(default=None, repr=False)
    lease_s: _Seconds = 10.0
    slice_s: _Seconds = 300.0
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 25.0
    concurrency: int = Field(default=150, ge=1)

    @property
    def config_is_explicit(self) -> bool:
        """A configuration file that was asked for must be there; the default one may be missing."""
        return "config" in self.model_fields_set

    @field_validator("database_url")
    @classmethod
    def _with_driver(cls, url: str | None) -> str | None:
        return None if url is None else sqlalchemy_url(url)

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("redis://", "rediss://", "redis+socket://", "unix://")):
            raise ValueError("is not a Redis address: write it as redis://[:PASSWORD@]HOST:PORT/NUMBER")
        return url

    @field_validator("home", "workspace", "config")
    @classmethod
    def _without_tilde(cls, path: Path) -> Path:
        return path.expanduser()


def load() -> Settings:
    """The environment as it is now. A process calls this once, at its start, and hands the value on.

    Raises ConfigError, one sentence, when a variable cannot be used; its value is told only where it cannot be secret.
    """
    try:
        return Settings()
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        name = PREFIX + str(problem["loc"][0]).upper()
        if problem["type"] == "value_error":
            raise ConfigError(f"{name} {problem['msg'].removeprefix('Value error, ')}.") from error
        default = Settings.model_fields[str(problem["loc"][0])].default
        raise ConfigError(
            f"{name} is {problem['input']!r}, which cannot be used ({_lower(problem['msg'])}): "
            f"set it to something like {default:g}, or unset it."
        ) from error


def sqlalchemy_url(url: str) -> str:
    """The address of a database as SQLAlchemy wants it, whichever of its usual forms it came in.

    Raises ValueError, without the address (it holds a password), for any other kind of database or driver.
    """
    for scheme in _ACCEPTED:
        if url.startswith(scheme):
            return _DRIVER + url.removeprefix(scheme)
    raise ValueError("is not a Postgres address: write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE")


def libpq_url(url: str) -> str:
    """The same address as psql, psycopg and other programs want it."""
    return "postgresql://" + sqlalchemy_url(url).removeprefix(_DRIVER)


def default_home() -> Path:
    """Where the embedded servers keep their data: `/var/lib/perdure` for root, else the user's data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/perdure")
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):
        return Path(data) / "perdure"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError as error:
            raise ConfigError("There is no home folder to keep data in: set PERDURE_HOME to a folder.") from error
    return Path(home) / ".local" / "share" / "perdure"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
