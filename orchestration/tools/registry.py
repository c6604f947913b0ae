"""Finds the tools that an agent names: a toolset, a module, or one function of either."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

from orchestration.errors import UnknownTool
from orchestration.ports import ToolSpec
from orchestration.tools.definition import Tool, tool_of

ENTRY_POINTS = "perdure.tools"
TOOLSETS = {
    "calculator": "orchestration.tools.calculator",
    "files": "orchestration.tools.files",
    "history": "orchestration.tools.history",
    "time": "orchestration.tools.clock",
}

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tools behind some names, by their own names, in order."""

    tools: Mapping[str, Tool]
    specs: tuple[ToolSpec, ...]


def resolve(names: Sequence[str]) -> Resolved:
    """The tools behind `names`; one that is named twice counts once.

    Each is a toolset ("files", or an entry point of the group "perdure.tools"), an importable module (its public
    tools), or one function of either ("module:function"). Raises UnknownTool, with what is known instead or what is
    wrong, also when two different tools share a name.
    """
    found: dict[str, Tool] = {}
    for name in names:
        for tool in _tools(name):
            other = found.setdefault(tool.name, tool)
            if other is not tool:
                raise UnknownTool(
                    f"Two tools are named {tool.name!r}: {_origin(other)} and {_origin(tool)}. "
                    "Leave one out, or give one another name with @tool(name=…)."
                )
    return Resolved(found, tuple(_spec(tool) for tool in found.values()))


def _tools(name: str) -> Sequence[Tool]:
    source, _, function = name.strip().partition(":")
    module_name, default = _source(source)
    module = _import(module_name, name)
    function = function or default
    return [_one(module, function)] if function else _all(module)


def _source(source: str) -> tuple[str, str]:
    """The module that a name stands for, and the one function of it that an entry point may name."""
    if source in TOOLSETS:
        return TOOLSETS[source], ""
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=source):
        return entry.module, entry.attr or ""
    return source, ""


def _import(module_name: str, name: str) -> ModuleType:
    if not _MODULE.fullmatch(module_name):
        raise UnknownTool(f"{name!r} names no tool. {_known()}")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UnknownTool(f"There is no toolset and no module {module_name!r}. {_known()}") from error
        raise UnknownTool(f"The module {module_name!r} cannot be imported: {error}.") from error
    except (Exception, SystemExit) as error:
        raise UnknownTool(f"The module {module_name!r} cannot be imported: {type(error).__name__}: {error}.") from error


def _one(module: ModuleType, function: str) -> Tool:
    tool = tool_of(getattr(module, function, None))
    if tool is not None:
        return tool
    why = "is not a tool (put @tool on it)" if hasattr(module, function) else "does not exist"
    known = ", ".join(n for n in _public(module) if tool_of(getattr(module, n, None))) or "none"
    raise UnknownTool(f"{function!r} in {module.__name__!r} {why}. Tools of that module: {known}.")


def _all(module: ModuleType) -> Sequence[Tool]:
    tools = [tool for name in _public(module) if (tool := tool_of(getattr(module, name, None)))]
    if not tools:
        raise UnknownTool(f"The module {module.__name__!r} has no public function under @tool.")
    return tools


def _public(module: ModuleType) -> Sequence[str]:
    chosen: Sequence[str] | None = getattr(module, "__all__", None)
    return chosen if chosen is not None else [name for name in vars(module) if not name.startswith("_")]


def _spec(tool: Tool) -> ToolSpec:
    try:
        return tool.spec
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnknownTool(
            f"The tool {_origin(tool)} cannot be offered, its type hints make no JSON schema: {reason}"
        ) from error


def _known() -> str:
    toolsets = sorted({*TOOLSETS, *(entry.name for entry in metadata.entry_points(group=ENTRY_POINTS))})
    return f"Known toolsets: {', '.join(toolsets)}; or name a module, or module:function, that this worker can import."


def _origin(tool: Tool) -> str:
    return f"{tool.function.__module__}:{tool.function.__qualname__}"
