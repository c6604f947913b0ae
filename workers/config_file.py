"""The shape of perdure.toml, and how a mistake in it is told: one sentence with the key and what to write instead.

Values of keys that may hold a secret are never repeated.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic_core import ErrorDetails

from orchestration.contexts import sources
from orchestration.errors import ConfigError
from orchestration.providers.settings import (
    COMMAND_REFERENCE,
    ENTRY_POINT_REFERENCE,
    ENV_REFERENCE,
    Api,
    KeyStrategy,
)
from persistence.records.agent import AgentSettings
from persistence.records.text import clean_value
from workers import output_schemas, overrides

M = TypeVar("M", bound=BaseModel)

_MAY_BE_SECRET = frozenset({"api_keys", "base_url", "extra_body"})
_Positive = Annotated[int, Field(gt=0)]
_Dollars = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


_REFERENCES = {
    ENV_REFERENCE: "NAME_OF_THE_VARIABLE",
    COMMAND_REFERENCE: "PROGRAM ARGUMENT",
    ENTRY_POINT_REFERENCE: "NAME",
}


def _check_words(command: str) -> None:
    """That the command can be taken apart into words. Raises ValueError; what it says is not repeated."""
    try:
        words = shlex.split(command)
    except ValueError:
        raise ValueError('a "command:" with an open quotation mark: close it') from None
    if "\0" in command or not words:
        raise ValueError('a "command:" that names no program: write "command:PROGRAM ARGUMENT"')


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProviderEntry(_Strict):
    """`[providers.NAME]`."""

    api: Api
    base_url: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    api_keys: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    quota_group: Annotated[str, Field(min_length=1)] | None = None
    requests_per_minute: _Positive | None = None
    tokens_per_minute: _Positive | None = None
    key_strategy: KeyStrategy = KeyStrategy.ORDER
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    prompt_cache: bool | None = None
    takes_schema: bool = True
    stream: bool = True
    call_id_chars: Annotated[int, Field(ge=9, le=40)] | None = None

    @field_validator("api_keys")
    @classmethod
    def _named(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            for prefix, example in _REFERENCES.items():
                if key.strip() == prefix:
                    raise ValueError(f'a reference "{prefix}" without a name: write "{prefix}{example}"')
            if key.startswith("$"):
                raise ValueError(f'a name behind a "$": write "{ENV_REFERENCE}NAME_OF_THE_VARIABLE"')
            if key.startswith(COMMAND_REFERENCE):
                _check_words(key.removeprefix(COMMAND_REFERENCE))
        if len(set(keys)) < len(keys):
            raise ValueError("the same key twice: write each once")
        return keys


class PriceEntry(_Strict):
    """`[prices."MODEL"]`."""

    input_usd_per_million: _Dollars
    output_usd_per_million: _Dollars
    cache_read_usd_per_million: _Dollars | None = None
    cache_write_usd_per_million: _Dollars | None = None


class ModelEntry(_Strict):
    """`[models."MODEL"]`."""

    context_window: _Positive | None = None
    max_output_tokens: _Positive | None = None


# What a number may be, beyond its type. Settings that are not listed may be anything of their type.
# The upper ends are what the database's columns and intervals hold, with room to be raised by a resume.
_COUNTS = ("iterations", "context_window", "compress_window", "max_output_tokens", "attempts", "max_crashes")
_TIMES = (
    "deadline_s",
    "connect_s",
    "first_token_s",
    "idle_s",
    "call_s",
    "tool_timeout_s",
    "context_timeout_s",
    "references_deadline_s",
)
_MOST = 1_000_000_000
_TEN_YEARS_S = 10 * 365 * 86_400


def _each_a_source(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        sources.check(name)
    return names


_BOUNDS: Mapping[str, Any] = {
    **{name: Field(ge=1, le=_MOST) for name in _COUNTS},
    **{name: Field(gt=0, le=_TEN_YEARS_S) for name in _TIMES},
    "max_tokens_total": Field(ge=1, le=10**15),
    "max_cost_usd": Field(gt=0, le=_MOST),
    "retry_in_place_s": Field(ge=0, le=_TEN_YEARS_S),
    "retry_base_s": Field(ge=0, le=_TEN_YEARS_S),
    "tool_threads": Field(ge=1, le=64),
    "result_chars": Field(ge=100),
    "context": AfterValidator(_each_a_source),
    "context_chars": Field(ge=100, le=_MOST),
    "compress_at": Field(gt=0, le=1),
    "compress_passes": Field(ge=0, le=20),
    "references": Field(max_length=8),
    "continuations": Field(ge=0, le=100),
    "output_repairs": Field(ge=0, le=100),
}
_SETTINGS = {f.name: f for f in fields(AgentSettings) if f.name != "name"}
_TYPES = get_type_hints(AgentSettings)


def _agent_field(name: str) -> Any:
    if name == "model":
        return (str | None, None)
    kind, setting = _TYPES[name], _SETTINGS[name]
    default = setting.default if setting.default_factory is MISSING else Field(default_factory=setting.default_factory)
    return (Annotated[kind, _BOUNDS[name]] if name in _BOUNDS else kind, default)


# Made from AgentSettings, so that a setting that is added there can be written in the file at once.
# `model` may be left out: the environment may name one.
AgentEntry = create_model("AgentEntry", __base__=_Strict, **{name: _agent_field(name) for name in _SETTINGS})


class ConfigFile(_Strict):
    """The whole file."""

    providers: dict[Annotated[str, Field(pattern=r"^[^\s:]+$")], ProviderEntry] = Field(default_factory=dict)
    agents: dict[str, AgentEntry] = Field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    prices: dict[str, PriceEntry] = Field(default_factory=dict)
    models: dict[str, ModelEntry] = Field(default_factory=dict)


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "providers": ProviderEntry,
    "agents": AgentEntry,
    "prices": PriceEntry,
    "models": ModelEntry,
}
_EXAMPLES: Mapping[str, str] = {
    "api": 'api = "openai-chat", "openai-responses" or "anthropic"',
    "base_url": "http://127.0.0.1:9000/v1",
    "input_usd_per_million": "input_usd_per_million = 0.25",
    "output_usd_per_million": "output_usd_per_million = 2.0",
}

_MOST_SHOWN = 80
_IN_OUR_WORDS = {
    "an object": "a table",
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid array": "a list",
    " after validation": "",
}


def read(model: type[M], data: Mapping[str, Any], *, where: str, under: str = "") -> M:
    """`data` as a `model`. `where` names its source and `under` the key that it stands below, for the sentence.

    Read as JSON, strictly: that takes a list for a tuple and a word for an enum, but no text and no `true` for a number.
    Text that is no Unicode (an argument of another encoding) is cleaned, as all text is on its way in.
    """
    try:
        return model.model_validate_json(json.dumps(clean_value(data), default=str), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(ended(f"{where}: {_sentence(model, problem, under)}")) from error


def typed(name: str, text: str) -> object:
    """The text of `--set name=text` as the value that perdure.toml would hold for that setting of an agent.

    A list is written `a,b`, a table as JSON, nothing at all as an empty text or `none`. What cannot be read as the setting's type is
    returned as it is, for `read` to refuse.
    """
    kind = _TYPES[name]
    accepted = get_args(kind) or (kind,)
    if NoneType in accepted and text.strip().lower() in ("", "none"):
        return None
    if name == output_schemas.SETTING:
        return output_schemas.from_text(text, where=overrides.written(name, text))
    if get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if int in accepted or float in accepted:
        try:
            return json.loads(text.replace("_", ""))
        except ValueError:
            return text
    return text


def as_written(value: object) -> str:
    """A value as the text that `typed` reads: programs send settings as what they are."""
    match value:
        case None | bool():
            return "none" if value is None else str(value).lower()
        case dict():
            return json.dumps(value)
        case list() | tuple():
            return ",".join(map(str, cast("list[object]", value)))
        case _:
            return str(value)


def setting_names() -> tuple[str, ...]:
    """Every setting of an agent, in the order of its record."""
    return tuple(_SETTINGS)


def guess(word: str, known: Collection[str]) -> str:
    """What somebody who wrote `word` may have meant, as the end of a sentence."""
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}" if known else "none is known"


def ended(sentence: str) -> str:
    """The sentence with its full stop, unless it ends as a question."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def _sentence(model: type[BaseModel], problem: ErrorDetails, under: str) -> str:
    loc = [str(part) for part in problem["loc"]]
    name = loc[-1] if loc else ""
    parent = ".".join([*([under] if under else []), *loc[:-1]])
    key = f"{parent}.{name}" if parent else name
    match problem["type"]:
        case "extra_forbidden":
            owner = _SECTIONS.get(loc[0], model) if len(loc) > 1 else model
            return f"{key} is not a setting: {guess(name, owner.model_fields)}"
        case "missing":
            return f"[{parent}] lacks {name}: add {_EXAMPLES.get(name, name + ' = …')}"
        case "value_error":
            return f"{key} holds {problem['msg'].removeprefix('Value error, ')}"
        case "string_pattern_mismatch" if name == "[key]":
            return f"{parent} is not a name for a provider: write one word without a colon"
        case "string_pattern_mismatch":
            return f"{key} is not an address: write one such as {_EXAMPLES['base_url']}"
        case _:
            told = "" if _MAY_BE_SECRET.intersection(loc) else f" = {_shown(problem['input'])}"
            return f"{key}{told} cannot be used: it {_wanted(problem['msg'])}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _wanted(message: str) -> str:
    """What pydantic says that the input, or "String", "Tuple" …, should be, in the words of the file."""
    wanted = message[message.find("should ") :] if "should " in message else message
    for theirs, ours in _IN_OUR_WORDS.items():
        wanted = wanted.replace(theirs, ours)
    return wanted
