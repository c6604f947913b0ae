"""`@tool`, and what it makes of a function. Standard library only: the schema is built when it is first asked for."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from orchestration.errors import PerdureError
from orchestration.ports import Effect, ToolSpec

if TYPE_CHECKING:
    from orchestration.tools.arguments import Arguments

P = ParamSpec("P")
R = TypeVar("R")
EffectName = Effect | Literal["reads", "repeatable", "once"]

_ATTRIBUTE = "__perdure_tool__"
# Both OpenAI and Anthropic refuse a request whose tool names do not match this.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolError(PerdureError):
    """Raised by a tool that cannot do what was asked; the model reads its text alone, without the type's name."""


@dataclass(frozen=True)
class Tool:
    """A function and what it says of itself."""

    function: Callable[..., Any]
    name: str
    effect: Effect
    timeout_s: float
    is_parallel: bool

    @cached_property
    def arguments(self) -> Arguments:
        """What the function takes. Raises whatever its type hints cause: they are read here, not at decoration."""
        from orchestration.tools.arguments import Arguments  # pydantic takes 0.2 s to import

        return Arguments(self.name, self.function)

    @cached_property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=inspect.getdoc(self.function) or "",
            parameters=self.arguments.schema,
            effect=self.effect,
            is_parallel=self.is_parallel,
            timeout_s=self.timeout_s,
        )

    @cached_property
    def hears_a_stop(self) -> bool:
        """Whether a stop reaches it: through its context, between two pieces that it yields, or at an `await`."""
        function = self.function
        is_driven = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
        return is_driven or bool(self.arguments.context_names)


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def tool(
    *, effect: EffectName = "once", timeout_s: float = 60.0, parallel: bool | None = None, name: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    effect: EffectName = "once",
    timeout_s: float = 60.0,
    parallel: bool | None = None,
    name: str | None = None,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Offer a typed function to models; it stays the function that it is, and is the outermost decorator.

    The docstring is the description, the type hints are the schema. A parameter annotated `ToolContext` is filled by
    Perdure and never shown. `parallel` says that calls may run beside their neighbours (default: only if it `reads`).
    A generator's pieces of text are its result; a coroutine is carried by `asyncio.run`. Raises TypeError or
    ValueError, in one sentence, for a function or a setting that cannot be offered.
    """

    def decorate(target: Callable[P, R]) -> Callable[P, R]:
        setattr(target, _ATTRIBUTE, _define(target, effect, timeout_s, parallel, name))
        return target

    return decorate if function is None else decorate(function)


def tool_of(value: object) -> Tool | None:
    """The tool that `value` was made into by `@tool`, if it was."""
    found = getattr(value, _ATTRIBUTE, None) if inspect.isroutine(value) else None
    return found if isinstance(found, Tool) else None


def _define(
    function: Callable[..., Any], effect: EffectName, timeout_s: float, parallel: bool | None, name: str | None
) -> Tool:
    name = name or function.__name__
    if not _NAME.fullmatch(name):
        raise ValueError(f"The tool name {name!r} must be 1 to 64 letters, digits, underscores or hyphens.")
    if effect not in list(Effect):
        raise ValueError(f"The effect of {name} is {effect!r}; it must be one of {', '.join(Effect)}.")
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"The timeout_s of {name} is {timeout_s}; it must be a positive number of seconds.")
    for parameter in inspect.signature(function).parameters.values():
        _require_plain(name, parameter)
    effect = Effect(effect)
    return Tool(function, name, effect, timeout_s, effect is Effect.READS if parallel is None else parallel)


def _require_plain(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise TypeError(f"The tool {name} takes {parameter}; a tool's parameters must be plain and named.")
    if parameter.annotation is inspect.Parameter.empty:
        raise TypeError(f"The parameter {parameter.name} of the tool {name} has no type hint; the model needs one.")
