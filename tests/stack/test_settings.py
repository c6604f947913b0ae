"""The environment: what is read, and what is said when it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestration.errors import ConfigError
from workers import settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in settings.Settings.model_fields:
        monkeypatch.delenv(settings.PREFIX + name.upper(), raising=False)


def test_without_variables_the_documented_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_HOME", "/srv/perdure")

    loaded = settings.load()

    assert (loaded.database_url, loaded.redis_url) == (None, None)
    assert (loaded.lease_s, loaded.slice_s, loaded.drain_s, loaded.concurrency) == (10, 300, 25, 150)
    assert (loaded.config, loaded.config_is_explicit) == (Path("perdure.toml"), False)
    assert loaded.workspace == Path("/srv/perdure/workspace")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", "")
    monkeypatch.setenv("PERDURE_LEASE_S", "")

    loaded = settings.load()

    assert (loaded.database_url, loaded.lease_s) == (None, 10)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_usual_form_of_a_postgres_address_is_accepted(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", f"{scheme}://ann:pw@db:5433/agents?sslmode=require")

    url = settings.load().database_url

    assert url == "postgresql+psycopg://ann:pw@db:5433/agents?sslmode=require"
    assert settings.libpq_url(url) == "postgresql://ann:pw@db:5433/agents?sslmode=require"


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("PERDURE_DATABASE_URL", "mysql://ann:hunter2@db/agents", "postgresql://USER"),
        ("PERDURE_REDIS_URL", "db:hunter2", "redis://"),
        ("PERDURE_LEASE_S", "soon", "something like 10"),
        ("PERDURE_LEASE_S", "0", "something like 10"),
        ("PERDURE_SLICE_S", "inf", "something like 300"),
        ("PERDURE_DRAIN_S", "-1", "something like 25"),
        ("PERDURE_CONCURRENCY", "1.5", "something like 150"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it_and_says_what_to_write(
    name: str, value: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError) as told:
        settings.load()

    sentence = str(told.value)
    assert sentence.startswith(name)
    assert advice in sentence
    assert "hunter2" not in sentence
    assert "\n" not in sentence


def test_addresses_are_not_in_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", "postgresql://ann:hunter2@db/agents")
    monkeypatch.setenv("PERDURE_REDIS_URL", "redis://:hunter2@cache/0")

    assert "hunter2" not in repr(settings.load())


def test_the_home_is_a_folder_of_the_user_even_when_HOME_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setenv("XDG_DATA_HOME", "/data/ann")
    with_xdg = settings.default_home()
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    with_home = settings.default_home()
    monkeypatch.setenv("HOME", "")

    assert with_xdg == Path("/data/ann/perdure")
    assert with_home == Path("/home/ann/.local/share/perdure")
    with pytest.raises(ConfigError, match="PERDURE_HOME"):  # no account has that number here
        settings.default_home()
