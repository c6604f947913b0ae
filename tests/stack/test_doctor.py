"""`doctor`: what it finds in sound and in broken surroundings, and that it changes nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import redis

from persistence import database
from workers.settings import WORKSPACE_ID_FILE, libpq_url
from workers.stack import doctor
from workers.stack.doctor import Finding

AGENT = """
[providers.main]
api = "openai-chat"
base_url = "http://127.0.0.1:9/v1"
api_keys = ["env:KEY_OF_MAIN"]
[agents.default]
model = "main:m"
"""


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))
    for name in ("PERDURE_DATABASE_URL", "PERDURE_REDIS_URL", "KEY_OF_MAIN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sound(database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", libpq_url(database_url))
    monkeypatch.setenv("PERDURE_REDIS_URL", redis_url)
    monkeypatch.setenv("KEY_OF_MAIN", "s3cret")
    (tmp_path / "perdure.toml").write_text(AGENT)
    (tmp_path / "home" / "workspace").mkdir(parents=True)
    (tmp_path / "home" / "workspace" / WORKSPACE_ID_FILE).write_text("0199-root\n")


def broken() -> list[Finding]:
    return [finding for finding in doctor.examine() if not finding.ok]


@pytest.mark.usefixtures("sound")
def test_sound_surroundings_are_all_well_and_no_secret_is_told() -> None:
    findings = doctor.examine()

    said = "\n".join(finding.what for finding in findings)
    assert [finding for finding in findings if not finding.ok] == []
    for word in ("Python", "Postgres", "Redis", "Agents from perdure.toml: default", "main: one key", "0199-root"):
        assert word in said
    assert "s3cret" not in said


def test_on_a_new_machine_it_says_what_can_be_started_and_how_to_get_a_model(tmp_path: Path) -> None:
    findings = doctor.examine()

    programs = next(finding for finding in findings if "can be started here" in finding.what)
    assert programs.ok
    assert [finding.what for finding in findings if not finding.ok] == [
        "No Postgres runs here",
        "No Redis runs here",
        "No agent is configured in the environment",
    ]
    assert all(finding.advice for finding in findings if not finding.ok)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERDURE_DATABASE_URL", "postgresql://ann:hunter2@127.0.0.1:{port}/x"),
        ("PERDURE_REDIS_URL", "redis://127.0.0.1:{port}"),
    ],
)
def test_a_server_that_cannot_be_reached_is_found(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(name, value.format(port=unused.getsockname()[1]))

        findings = broken()

    assert len(findings) == 1
    assert "reach" in findings[0].what or "refused" in findings[0].what
    assert name in findings[0].advice
    assert "hunter2" not in str(findings)


@pytest.mark.usefixtures("sound")
def test_a_postgres_that_is_too_old_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MINIMUM_VERSION", 99)

    assert "is too old: Perdure needs 99 or newer" in broken()[0].what


@pytest.mark.usefixtures("sound")
def test_a_database_without_the_schema_is_found(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATABASE_URL", empty_database_url)

    assert "perdure migrate" in broken()[0].what


@pytest.mark.usefixtures("sound")
def test_a_redis_that_may_forget_messages_is_found(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        findings = broken()
    finally:
        client.config_set("maxmemory-policy", "noeviction")

    assert [finding.what for finding in findings if "allkeys-lru" in finding.what]
    assert "noeviction" in findings[0].advice


@pytest.mark.usefixtures("sound")
def test_a_broken_configuration_a_missing_key_and_a_wrong_variable_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEY_OF_MAIN")
    assert "KEY_OF_MAIN, which is not set" in broken()[0].what
    (tmp_path / "perdure.toml").write_text(AGENT + "iteration = 3\n")
    assert "did you mean iterations?" in broken()[0].what
    monkeypatch.setenv("PERDURE_LEASE_S", "soon")
    assert "PERDURE_LEASE_S" in broken()[0].what


@pytest.mark.usefixtures("sound")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_workspace_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "home" / "workspace").chmod(0o500)

    assert "PERDURE_WORKSPACE" in broken()[0].advice


@pytest.mark.usefixtures("sound")
def test_a_workspace_that_is_a_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WORKSPACE", str(tmp_path / "perdure.toml"))

    assert "PERDURE_WORKSPACE" in broken()[0].advice


@pytest.mark.usefixtures("sound")
def test_a_capped_cost_without_a_price_is_found(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text(AGENT + "max_cost_usd = 1\n")

    [finding] = broken()

    assert finding.what.startswith("Agent default: max_cost_usd is set, but no price of 'main:m' is known")
