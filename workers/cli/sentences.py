"""What each event of a turn says to people: one line, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from orchestration.costs import dollars
from persistence.events import StoredEvent
from workers.cli import render
from workers.cli.notices import one_line

Payload = Mapping[str, Any]


def line(event: StoredEvent) -> str:
    """One event, one line: when, and what."""
    return f"{render.clock(event.at)}  {sentence(event)}"


def sentence(event: StoredEvent) -> str:
    """What happened, in a few words. An event that this version does not know is told by its name and fields."""
    tell = _SENTENCES.get(event.type)
    return one_line(tell(event.payload) if tell else f"{event.type} {_fields(event.payload)}".rstrip())


def knows(event_type: str) -> bool:
    """Whether an event of this type has a sentence of its own."""
    return event_type in _SENTENCES


def _fields(payload: Payload) -> str:
    return " ".join(f"{key}={value}" for key, value in payload.items())


# By the counter of an answer that goes on.
_UNFINISHED = {
    "continuations": "was cut at the output limit",
    "full_window": "filled the model's window",
    "pauses": "was paused by the provider",
    "output_repairs": "does not fit its schema",
}


def _answered(p: Payload) -> str:
    asked: list[str] = p.get("tools") or []
    what = f"asks for {', '.join(asked)}" if asked else "answers"
    took = f"{render.seconds(p.get('latency_s'))}, {render.tokens(p.get('input_tokens'), p.get('output_tokens'))}"
    cost = f", {dollars(Decimal(p['cost_usd']))}" if p.get("cost_usd") is not None else ""
    return f"iteration {p.get('iteration')}: {p.get('model')} {what} ({took}{cost})"


def _failed(p: Payload) -> str:
    if p.get("error") == "unfit_worker":
        return f"this worker cannot go on: {p.get('why')}"
    if p.get("why"):
        return f"{p.get('why')} Another key is tried."
    status = f" with status {p['status']}" if p.get("status") else ""
    key = f" with key {p['key']}" if p.get("key") else ""
    after = "; another key is tried" if p.get("with_another_key") else ""
    model = f"{p.get('provider')}:{p.get('model')}"
    return f"attempt {p.get('attempt')} at {model}{key} failed: {p.get('error')}{status}{after}"


_HELD = {
    "cooling_down": "its provider wants a pause",
    "own_limits": "the configured limits of its provider are used up",
    "endpoint_down": "its endpoint does not answer",
    "no_usable_key": "every key of its provider was refused",
}


def _held(p: Payload) -> str:
    why = _HELD.get(str(p.get("by")), p.get("by"))
    return f"{p.get('provider')}:{p.get('model')} is not asked for {render.seconds(p.get('wait_s'))}: {why}"


def _context(p: Payload) -> str:
    sources, empty = p.get("sources") or [], p.get("empty") or []
    without = f"; nothing in {', '.join(empty)}" if empty else ""
    return f"context joins the request: {render.sizes(sources) or 'none'}{without}"


def _waiting(p: Payload) -> str:
    pause = f" of {render.seconds(p['resume_in_s'])}" if p.get("resume_in_s") is not None else ""
    return f"waits for {p.get('for')}{pause}; no worker is held"


def _handed_back(p: Payload) -> str:
    if p.get("needs"):
        return f"needs a newer worker: it is written in format {p.get('format')}"
    if p.get("unreadable"):
        return "could not be loaded by its worker, whose log says why; it is tried again"
    return "handed back by its worker; another one goes on"


def _model(p: Payload) -> str:
    return f"{p.get('provider')}:{p.get('model')}"


def _fell_back(p: Payload) -> str:
    why = str(p.get("error"))
    return f"{p.get('to')} goes on instead of {p.get('from')}: {_HELD.get(why, why)}"


def _look_failed(p: Payload) -> str:
    status = f" with status {p['status']}" if p.get("status") else ""
    return f"look {p.get('look')} for the answer of {_model(p)} failed: {p.get('error')}{status}"


def _compressed(p: Payload) -> str:
    sizes = f"{p.get('tokens_before')} → {p.get('tokens_after')} tokens"
    return f"messages {p.get('from_seq')} to {p.get('to_seq')} are summarised by {p.get('model')} ({sizes})"


def _not_compressed(p: Payload) -> str:
    after = "; no more are made" if p.get("gives_up") else ""
    return f"attempt {p.get('attempt')} at a summary by {p.get('model')} failed: {p.get('error')}{after}"


def _repaired(p: Payload) -> str:
    match p.get("repair"):
        case "output_cap":
            how = f"answers of at most {p.get('value')} tokens are asked for"
        case "thinking":
            # Beyond any number that a message has: all of it.
            is_all = isinstance(value := p.get("value"), int) and value >= 2**53
            how = "no thinking is sent back" if is_all else f"thinking up to message {value} is left out"
        case "call_ids":
            how = f"ids of calls are sent as {p.get('value')} letters and digits"
        case other:
            how = f"{other} {p.get('value')}"
    return f"{p.get('model')} refused the request: from now on, {how}"


def _ended(p: Payload) -> str:
    return f"{p.get('status')}: {p.get('exit_reason')}"


_SENTENCES: Mapping[str, Callable[[Payload], str]] = {
    "turn.submitted": lambda p: (
        f"submitted to agent {p.get('agent')}"
        + (f", item {p.get('custom_id')} of batch {p.get('batch_id')}" if p.get("batch_id") else "")
    ),
    "turn.claimed": lambda p: f"carried by a worker (fencing token {p.get('fencing_token')})",
    "turn.taken_back": lambda _: "its worker was lost; another one goes on from the last checkpoint",
    "turn.handed_back": _handed_back,
    "turn.waiting": _waiting,
    "model.held": _held,
    "turn.resumed": lambda p: f"resumed ({render.times(p.get('resumes', 1), 'time')} now)",
    "turn.ended": _ended,
    "model.answered": _answered,
    "model.failed": _failed,
    "model.started": lambda p: (
        f"iteration {p.get('iteration')}: {p.get('model')} makes its answer in the background ({p.get('id')})"
    ),
    "model.look_failed": _look_failed,
    "model.not_interrupted": lambda p: (
        f"{_model(p)} could not be told that nobody wants its answer {p.get('id')}: {p.get('error')}"
    ),
    "model.fallback": _fell_back,
    "compression.done": _compressed,
    "compression.failed": _not_compressed,
    "results.shortened": lambda p: (
        f"of each result from message {p.get('from_seq')} on, the model is shown {p.get('chars')} characters"
    ),
    "request.repaired": _repaired,
    "tool.started": lambda p: f"  {p.get('name')} starts",
    "tool.ended": lambda p: f"  {p.get('name')} {p.get('status')} ({render.seconds(p.get('duration_s'))})",
    "answer.goes_on": lambda p: (
        f"the answer {_UNFINISHED.get(str(p.get('why')), p.get('why'))}: it goes on, {p.get('n')} of {p.get('most')}"
    ),
    "steer.applied": lambda p: f"steer {p.get('n')} has joined the turn",
    "steer.not_delivered": lambda p: f"steer {p.get('n')} came too late",
    "context.added": _context,
    "context.left_out": lambda p: f"context {p.get('source')} was left out: {p.get('why')}",
    "system_prompt.rebuilt": lambda p: f"the session's system prompt was {p.get('was')}, and is built anew",
    "draft.arrived": lambda p: f"draft of {p.get('model')} ({render.seconds(p.get('latency_s'))})",
    "draft.failed": lambda p: f"no draft of {p.get('model')}: {p.get('error')}",
    "drafts.gathered": lambda p: f"iteration {p.get('iteration')}: all drafts are in",
    "drafts.skipped": lambda p: (
        f"iteration {p.get('iteration')}: no drafts are asked for, they might not fit: {p.get('why')}"
    ),
    "budget.grace": lambda _: "the iterations are spent; one last call, without tools",
}
