"""What a hand-written loop needs of a protocol: ways to ask, and how an answer and a result join the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ops.bench.tools import read_record
from ops.bench.work import TOOL
from orchestration.ports import ToolSpec
from orchestration.providers.settings import Api
from orchestration.tools.definition import tool_of

Json: TypeAlias = dict[str, Any]
# Client, model, conversation so far -> the answer as plain data.
Ask: TypeAlias = Callable[[Any, str, list[Json]], Json]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model asked for; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str

    def run(self) -> str:
        """The text that answers it."""
        assert self.name == TOOL
        return read_record(**json.loads(self.arguments))


@dataclass(frozen=True, slots=True)
class Protocol:
    """One of the three protocols. `asks` are the ways to ask by the name of the SDK's method, the usual one first.

    `opening` is a conversation that holds the prompt, `joined` what of an answer joins it, `result` what answers a call.
    """

    api: Api
    connect: Callable[[str], Any]
    asks: Mapping[str, Ask]
    opening: Callable[[], list[Json]]
    joined: Callable[[Json], Sequence[Json]]
    calls: Callable[[Json], Sequence[Call]]
    result: Callable[[str, str], Json]

    @property
    def usual(self) -> Ask:
        return next(iter(self.asks.values()))


def spec() -> ToolSpec:
    """The tool as the model sees it, the same for every contender."""
    found = tool_of(read_record)
    assert found is not None
    return found.spec
