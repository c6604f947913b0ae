"""The JSON schema of an agent's answers, as people write it: in place, or in a file of its own.

Every mistake is one ConfigError whose sentence says where it stands and what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from orchestration.errors import ConfigError
from orchestration.structured_output import WrongSchema, check_schema
from persistence.records.agent import AgentSettings

SETTING = "output_schema"


def check(agent: AgentSettings, *, where: str) -> None:
    """That the agent's answers can have the form that it wants, if it wants one. Raises ConfigError."""
    if agent.output_schema is None:
        return
    try:
        check_schema(agent.output_schema)
    except WrongSchema as error:
        raise ConfigError(f"{where}: the {SETTING} of the agent {agent.name!r} {error}.") from error


def with_files(data: Mapping[str, Any], folder: Path, *, where: str) -> Mapping[str, Any]:
    """The configuration file with the schemas that it names by a path, relative to its `folder`, read into it."""
    agents: Any = data.get("agents")
    if not isinstance(agents, dict):
        return data
    read = {
        name: {**entry, SETTING: from_file(folder / entry[SETTING], where=f"{where}: agents.{name}.{SETTING}")}
        for name, entry in cast("dict[str, Any]", agents).items()
        if isinstance(entry, dict) and isinstance(entry.get(SETTING), str)
    }
    return {**data, "agents": {**agents, **read}} if read else data


def from_file(path: Path, *, where: str) -> dict[str, Any]:
    """The schema in a JSON file. Raises ConfigError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise ConfigError(f"{where} names the file {path}, which cannot be read ({reason}).") from error
    return from_text(text, where=f"{where} names the file {path}, which")


def from_text(text: str, *, where: str) -> dict[str, Any]:
    """The schema that a text is. Raises ConfigError."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: write the schema itself, as a JSON object ({error}).") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{where} is no JSON object: write a schema such as " + '{"type": "object", "properties": …}.'
        )
    return cast("dict[str, Any]", value)
