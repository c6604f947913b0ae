"""The JSON schema of an agent's answers, as it is written, and the sentence for every mistake in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestration.errors import ConfigError
from persistence.records.agent import AgentSettings
from workers import config
from workers.cli import arguments
from workers.config_file import as_written
from workers.settings import Settings

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FILE = (
    '[providers.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:9000/v1"\n[agents.default]\nmodel = "main:m"\n'
)


def load(folder: Path, line: str = "") -> config.Config:
    path = folder / "perdure.toml"
    path.write_text(FILE + line, encoding="utf-8")
    return config.load(Settings.model_validate({"home": str(folder), "config": str(path)}), {})


def with_set(folder: Path, value: str) -> Mapping[str, Any] | None:
    return config.resolve_agent(load(folder), "default", {"output_schema": value}).output_schema


def test_a_schema_is_written_as_a_table_or_as_the_path_of_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(SCHEMA))
    table = 'output_schema = { type = "object", properties = { a = { type = "integer" } }, required = ["a"] }'

    for line in (
        table,
        'output_schema = "answer.json"',
        f"output_schema = {json.dumps(str(tmp_path / 'answer.json'))}",
    ):
        assert config.resolve_agent(load(tmp_path, line), "default").output_schema == SCHEMA


def test_one_turn_can_have_a_schema_of_its_own_or_none(tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(SCHEMA))
    from_file = arguments.settings([f"output_schema=@{tmp_path / 'answer.json'}"])

    assert with_set(tmp_path, json.dumps(SCHEMA)) == SCHEMA
    assert with_set(tmp_path, from_file["output_schema"]) == SCHEMA
    assert with_set(tmp_path, as_written(SCHEMA)) == SCHEMA
    assert with_set(tmp_path, "none") is None


def test_settings_that_programs_send_are_read_as_they_mean_them() -> None:
    assert [as_written(v) for v in (None, True, 5, 0.5, ["a", "b"], "x")] == ["none", "true", "5", "0.5", "a,b", "x"]


def test_a_stored_agent_keeps_its_schema_and_an_older_one_has_none() -> None:
    agent = AgentSettings("a", "main:m", output_schema=SCHEMA)
    stored = json.loads(json.dumps(agent.to_json()))

    assert AgentSettings.from_json(stored) == agent
    assert AgentSettings.from_json(stored).digest == agent.digest
    older = {k: v for k, v in stored.items() if k not in ("output_schema", "output_repairs", "continuations")}
    assert AgentSettings.from_json(older) == AgentSettings("a", "main:m")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('{"type": "array"}', 'is not of type "object" at its root'),
        ('{"type": "object", "properties": {"a": {"type": "whole"}}}', "is no JSON schema: at $.properties.a.type"),
        (
            '{"type": "object", "properties": {"a": {"$ref": "http://x/y.json"}}}',
            "refers to 'http://x/y.json': put that",
        ),
        (
            '{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}',
            "refers to '#/$defs/b', and there is nothing",
        ),
        ('{"type": "object", "$ref": "#"}', "refers to itself without an end"),
        (f'{{"type": "object", "title": "{"x" * 100_001}"}}', "is longer than 100,000 characters"),
        ("[]", "is no JSON object: write a schema such as"),
        ("@answer.json", "is no JSON: write the schema itself"),
        ("{", "is no JSON: write the schema itself"),
    ],
    ids=["a list", "an unknown type", "elsewhere", "nowhere", "endless", "long", "no object", "a path", "half"],
)
def test_a_schema_that_no_answer_can_have_is_refused_with_one_sentence(tmp_path: Path, schema: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_set(tmp_path, schema)

    assert told in str(caught.value)
    assert "output_schema" in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('output_schema = "missing.json"', "missing.json, which cannot be read (No such file or directory)"),
        ('output_schema = "perdure.toml"', "perdure.toml, which is no JSON"),
        ("output_schema = 5", "output_schema = 5 cannot be used"),
        ('output_schema = { type = "array" }', "the output_schema of the agent 'default' is not of type"),
        ("output_repairs = -1", "output_repairs = -1 cannot be used"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, line)

    assert told in str(caught.value)
    assert "perdure.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_wrong_usage_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(arguments.WrongUsage, match=r"the file cannot be read \(No such file or directory\)"):
        arguments.settings([f"output_schema=@{tmp_path / 'missing.json'}"])
