"""Scripts as JSON, for servers in another process and for script files.

    script   {"steps": [step…], "faults": [answer | null…], …other fields of Script}
    step     answer | {"attempts": [answer…]}, and "times": n to have it n times
    answer   a reply   {"text", "thinking", "redacted", "calls": [{"name", "arguments", "id"}], "finish", "tokens": {…},
                        "gate": "name" | {"name", "at"}, "break": {"kind", "at", "interval_s", "error"}, "delay_s",
                        "token_delay_s", "chunk_chars", "as_json"}
             or an error status   {"status": 429, "message", "type", "code", "headers", "html", "retry_after", …}
    A string is a reply of that text. "arguments" is an object, or a string that is sent as it is.
A script file is {"NAME": script…}.
"""

from __future__ import annotations

import json
from typing import Any, cast

from ops.dev.scripted_provider.asked import Json
from ops.dev.scripted_provider.script import (
    BREAK_KINDS,
    FINISHES,
    STAGES,
    Answer,
    Attempts,
    Break,
    Call,
    Failure,
    Gate,
    Part,
    Redacted,
    Reply,
    Script,
    Step,
    Text,
    Thinking,
    Tokens,
    status,
)

_TIMING = ("delay_s", "token_delay_s", "chunk_chars", "as_json", "headers")
_REPLY = frozenset({"text", "thinking", "redacted", "calls", "finish", "tokens", "gate", "break", *_TIMING})
_FAILURE = frozenset({"status", "message", "type", "code", "headers", "html", "retry_after", "delay_s", "gate"})
_SCRIPT = (
    "count",
    "repeat_last",
    "context_limit",
    "max_output",
    "call_id_chars",
    "strict_alternation",
    "binds_thinking",
)


def script_from_json(data: Json) -> Script:
    """The script that `data` describes. Raises ValueError or TypeError with what is wrong."""
    _known(data, {"steps", "faults", *_SCRIPT})
    if "steps" not in data:
        raise ValueError("a script needs steps")
    steps: list[Step] = []
    for one in data["steps"]:
        steps += _steps(one)
    faults = [None if f is None else answer_from_json(f) for f in data.get("faults", [])]
    return Script(steps, faults, **{k: data[k] for k in _SCRIPT if k in data})


def answer_from_json(data: Json | str) -> Answer:
    """One reply or error status. Raises ValueError or TypeError."""
    if isinstance(data, str):
        return Reply((Text(data),))
    return _failure(data) if "status" in data else _reply(data)


def _steps(data: Json | str) -> list[Step]:
    if isinstance(data, str):
        return [answer_from_json(data)]
    _known(data, _REPLY | _FAILURE | {"times", "attempts"})
    rest = {k: v for k, v in data.items() if k != "times"}
    step: Step
    if "attempts" in rest:
        _known(rest, {"attempts"})
        step = Attempts(tuple(answer_from_json(a) for a in rest["attempts"]))
    else:
        step = answer_from_json(rest)
    return [step] * int(data.get("times", 1))


def _reply(data: Json) -> Reply:
    _known(data, _REPLY)
    parts: list[Part] = []
    if "thinking" in data:
        parts.append(Thinking(data["thinking"]))
    if "redacted" in data:
        parts.append(Redacted(data["redacted"]))
    if data.get("text"):
        parts.append(Text(data["text"]))
    parts += [_call(c) for c in data.get("calls", [])]
    return Reply(
        tuple(parts),
        finish=_one_of(FINISHES, data.get("finish")),
        tokens=Tokens(**data["tokens"]) if "tokens" in data else None,
        gate=_gate(data.get("gate")),
        broken=_break(data.get("break")),
        **{k: data[k] for k in _TIMING if k in data},
    )


def _failure(data: Json) -> Failure:
    _known(data, _FAILURE)
    rest = {k: v for k, v in data.items() if k not in ("status", "message", "gate")}
    return status(int(data["status"]), data.get("message"), gate=_gate(data.get("gate")), **rest)


def _call(data: Json) -> Call:
    _known(data, {"name", "arguments", "id"})
    arguments = data.get("arguments", {})
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(data["name"], raw, data.get("id"))


def _gate(data: Json | str | None) -> Gate | None:
    if data is None or isinstance(data, str):
        return Gate(data) if data else None
    return Gate(data["name"], _one_of(STAGES, data.get("at", "before-byte")))


def _break(data: Json | None) -> Break | None:
    if data is None:
        return None
    checked = dict(data)
    checked["kind"] = _one_of(BREAK_KINDS, data["kind"])
    checked["at"] = _one_of(STAGES, data.get("at", "mid-text"))
    return Break(**checked)


def _one_of(allowed: tuple[str, ...], value: Any) -> Any:
    if value is not None and value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return value


def _known(data: Any, allowed: set[str] | frozenset[str]) -> None:
    if not isinstance(data, dict):
        raise TypeError(f"expected an object, got {data!r}")
    unknown = set(cast("Json", data)) - allowed
    if unknown:
        raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
