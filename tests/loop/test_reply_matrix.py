"""Every odd reply that a protocol can carry, from its bytes to the history that is kept and the request that follows.

A server that is as strict as the real ones must take every request: what a turn made of a reply goes back to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestration.providers.settings import Api
from persistence.records.message import Role
from persistence.records.status import ExitReason
from tests.loop.wire import Asks, Json, Said, Searches, Thought, Wire, answering, wire
from tests.providers.bench import APIS, client
from tests.support.workbench import Bench

DONE = ExitReason.FINAL_ANSWER
CHAT, RESPONSES, ANTHROPIC = (frozenset({api}) for api in APIS)
EVERY = frozenset(APIS)

ANN, BOB = '{"to":"ann"}', '{"to":"bob"}'
CUT = '{"to":"an'


@dataclass(frozen=True)
class Row:
    """Replies, then "Done.": how the turn ends, what its calls came to in call order, how many requests it made.

    `sent` are the letters that the tool `send` wrote (none of them twice), `says` a word of the result of the first call.
    """

    name: str
    replies: tuple[Wire, ...]
    exit_reason: ExitReason = DONE
    output: str = "Done."
    calls: tuple[str, ...] = ()
    requests: int = 2
    sent: tuple[str, ...] = ()
    says: str = ""
    apis: frozenset[Api] = EVERY
    streams: tuple[bool, ...] = (True, False)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return self.name


def refused(name: str, *parts: Any, apis: frozenset[Api] = EVERY, finish: str = "refusal") -> Row:
    reply = wire(*parts, finish=finish)
    return Row(name, (reply,), ExitReason.REFUSED, "", (), 1, apis=apis)


def empty(name: str, *parts: Any, finish: str = "stop", apis: frozenset[Api] = EVERY) -> Row:
    """One attempt that failed, and one that did not."""
    return Row(name, (wire(*parts, finish=finish),), apis=apis)


def one(name: str, *calls: Asks, result: str, says: str = "", finish: str = "tool_calls", **more: Any) -> Row:
    """A reply of calls that cannot run."""
    return Row(name, (wire(*calls, finish=finish),), calls=(result,) * len(calls), says=says, **more)


def streamed(name: str, *deltas: Json, calls: tuple[str, ...], sent: tuple[str, ...]) -> Row:
    """A stream of Chat Completions, delta by delta."""
    reply = Wire(finish="tool_calls", deltas=tuple({"tool_calls": [delta]} for delta in deltas))
    return Row(name, (reply,), calls=calls, sent=sent, apis=CHAT, streams=(True,))


def delta(arguments: str, name: str | None = None, **more: Any) -> Json:
    return {**more, "function": {"arguments": arguments, **({} if name is None else {"name": name})}}


LETTER = ("succeeded",)
TWO = ("succeeded", "succeeded")

ROWS = (
    # Cut at the output limit.
    Row(
        "text that is cut goes on",
        (wire(Said("Once upon a ti"), finish="length"), wire(Said("me."))),
        output="Once upon a time.",
    ),
    Row(
        "text that is cut for ever",
        (wire(Said("a "), finish="length"),) * 9,
        ExitReason.OUTPUT_TRUNCATED,
        "a a a a ",
        requests=4,
    ),
    Row(
        "arguments that are cut are asked for again",
        (wire(Asks("send", CUT, "c1"), finish="length"), wire(Asks("send", ANN, "c1"), finish="tool_calls")),
        calls=LETTER,
        requests=3,
        sent=("ann",),
    ),
    Row(
        "arguments that are cut for ever",
        (wire(Said("I write. "), Asks("send", ANN, "c1"), Asks("send", CUT, "c2"), finish="length"),) * 9,
        ExitReason.OUTPUT_TRUNCATED,
        "",
        requests=3,
    ),
    Row(
        "arguments that are cut, and an intermediary says otherwise",
        (wire(Asks("send", CUT, "c1"), Asks("send", BOB, "c2"), finish="tool_calls"),),
        calls=("failed", "succeeded"),
        sent=("bob",),
        says="not valid JSON",
    ),
    Row(
        "whole calls of a reply that is cut",
        (wire(Asks("send", ANN, "c1"), finish="length"),),
        calls=LETTER,
        sent=("ann",),
    ),
    empty("nothing but a limit", finish="length"),
    empty("thoughts up to the limit", Thought(), finish="length"),
    # Nothing said.
    empty("nothing"),
    empty("an empty text", Said("")),
    empty("nothing but white space", Said(" \n\t ")),
    empty("nothing but thoughts", Thought()),
    empty("calls that were announced and are not there", finish="tool_calls", apis=CHAT | ANTHROPIC),
    Row("nothing for ever", (wire(),) * 9, ExitReason.EMPTY_RESPONSE, "", requests=3),
    # Refusals.
    refused("a refusal without a word"),
    refused("a refusal in words", Said("I cannot do that.")),
    refused("a refusal beside a call", Said("I cannot."), Asks("send", ANN, "c1")),
    refused("a refusal in its own field", Said("I won't.", "refusal"), finish="stop", apis=CHAT | RESPONSES),
    refused("a refusal as Gemini says it", Said("Well"), finish="SAFETY", apis=CHAT),
    # Arguments.
    one("arguments that are a list", Asks("send", '["ann"]', "c1"), result="failed", says="must be one JSON object"),
    one("arguments that are a text", Asks("send", '"ann"', "c1"), result="failed", says=""),
    one("arguments that are null", Asks("send", "null", "c1"), result="failed", apis=CHAT | RESPONSES),
    one("arguments that miss a field", Asks("note", "{}", "c1"), result="failed", says='"text" is missing'),
    one(
        "arguments of two calls in one", Asks("send", ANN + BOB, "c1"), result="failed", says="2 JSON objects in a row"
    ),
    # Names.
    one("a tool that is not there", Asks("fly", "{}", "c1"), result="failed", says="look"),
    one("a name that no provider takes", Asks("no such tool!", "{}", "c1"), result="failed"),
    one("no name", Asks("", "{}", "c1"), result="failed"),
    one("a name said twice", Asks("sendsend", ANN, "c1"), result="failed", says="send"),
    one("a call where no tool is offered", Asks("send", ANN, "c1"), result="failed", settings={"tools": ()}),
    Row(
        "a call in the grace call",
        (
            wire(Asks("look", "{}", "c1"), finish="tool_calls"),
            wire(Said("So far."), Asks("send", ANN, "c2"), finish="tool_calls"),
        ),
        ExitReason.BUDGET_EXHAUSTED,
        "So far.",
        calls=("succeeded", "not_run"),
        settings={"iterations": 1},
    ),
    # Ids.
    Row("no id", (wire(Asks("send", ANN), Asks("send", BOB), finish="tool_calls"),), calls=TWO, sent=("ann", "bob")),
    Row("an id of null", (wire(Asks("send", ANN, None), finish="tool_calls"),), calls=LETTER, sent=("ann",)),
    Row(
        "one id for two calls",
        (wire(Asks("send", ANN, "a"), Asks("send", BOB, "a"), finish="tool_calls"),),
        calls=TWO,
        sent=("ann", "bob"),
    ),
    Row(
        "one call twice under one id",
        (wire(Asks("send", ANN, "a"), Asks("send", ANN, "a"), finish="tool_calls"),),
        calls=("succeeded", "failed"),
        sent=("ann",),
    ),
    Row(
        "ids that begin anew in every reply",
        (
            wire(Asks("send", ANN, "call_0"), finish="tool_calls"),
            wire(Asks("send", BOB, "call_0"), finish="tool_calls"),
        ),
        calls=TWO,
        requests=3,
        sent=("ann", "bob"),
    ),
    Row(
        "ids that no provider takes",
        (wire(Asks("send", ANN, "fc:1|ö"), Asks("send", BOB, "x" * 65), finish="tool_calls"),),
        calls=TWO,
        sent=("ann", "bob"),
    ),
    Row(
        "an id that older servers do not take",
        (wire(Asks("send", ANN, "x" * 60), finish="tool_calls"),),
        calls=LETTER,
        sent=("ann",),
    ),
    # Streams of Chat Completions.
    streamed(
        "parallel calls under one index, each with its id",
        delta("", "send", index=0, id="a"),
        delta(ANN, index=0),
        delta("", "send", index=0, id="b"),
        delta(BOB, index=0),
        calls=TWO,
        sent=("ann", "bob"),
    ),
    streamed(
        "parallel calls under one index, without ids",
        delta(ANN, "send", index=0),
        delta(BOB, "send", index=0),
        calls=TWO,
        sent=("ann", "bob"),
    ),
    streamed(
        "parallel calls without an index",
        delta(ANN[:4], "send", id="a"),
        delta(ANN[4:]),
        delta(BOB[:4], "send", id="b"),
        delta(BOB[4:]),
        calls=TWO,
        sent=("ann", "bob"),
    ),
    streamed(
        "the name and the id in every delta",
        delta(ANN[:4], "send", index=0, id="a"),
        delta(ANN[4:], "send", index=0, id="a"),
        calls=LETTER,
        sent=("ann",),
    ),
    streamed(
        "another id in every delta",
        delta(ANN[:4], "send", index=0, id="a"),
        delta(ANN[4:], index=0, id="b"),
        calls=LETTER,
        sent=("ann",),
    ),
    # Other reasons to stop.
    Row(
        "a pause",
        (wire(Said("I look. "), Searches(), finish="pause"), wire(Said("Found it."))),
        output="I look. Found it.",
        apis=ANTHROPIC,
    ),
    Row(
        "a pause for ever",
        (wire(Said("a "), Searches(), finish="pause"),) * 20,
        ExitReason.OUTPUT_TRUNCATED,
        "a " * 11,
        requests=11,
        apis=ANTHROPIC,
    ),
    Row(
        "a pause in words alone",
        (wire(Said("I look. "), finish="pause"), wire(Said("Found it."))),
        output="I look. Found it.",
        apis=ANTHROPIC,
    ),
    Row("a stop sequence", (wire(Said("Stop."), finish="stop_sequence"),), output="Stop.", requests=1, apis=ANTHROPIC),
    Row(
        "an unknown reason to stop",
        (wire(Said("Eh."), finish="eos_token"),),
        output="Eh.",
        requests=1,
        apis=CHAT | ANTHROPIC,
    ),
    Row("an ordinary stop with calls", (wire(Asks("send", ANN, "c1")),), calls=LETTER, sent=("ann",)),
    Row(
        "calls with an unknown reason",
        (wire(Asks("send", ANN, "c1"), finish="tool"),),
        calls=LETTER,
        sent=("ann",),
        apis=CHAT | ANTHROPIC,
    ),
)

CASES = [
    pytest.param(row, api, streams, id=f"{row.name}-{api}-{'streamed' if streams else 'json'}")
    for row in ROWS
    for api in APIS
    if api in row.apis
    for streams in row.streams
]


@pytest.mark.parametrize(("row", "api", "streams"), CASES)
def test_an_odd_reply_leaves_a_history_that_its_provider_takes(
    bench: Bench, row: Row, api: Api, *, streams: bool
) -> None:
    with answering(api, row.replies, streams=streams) as server, client(api, server.url) as model:
        turn_id = bench.submit("Do it.", model="main:served", **row.settings)
        bench.run(turn_id, bench.runtime(models=lambda _name: model))
        view = bench.view(turn_id)
        server.waiting.clear()
        following = bench.submit("And now?", session_id=view.session_id, model="main:served", tools=())
        bench.run(following, bench.runtime(models=lambda _name: model))

    assert server.refused == []
    assert (view.exit_reason, view.output_text) == (row.exit_reason, row.output)
    assert len(server.bodies) == row.requests + 1
    results = [*bench.results(turn_id).values()]
    assert tuple(r.status.value for r in results) == row.calls
    assert not row.says or row.says in results[0].content
    assert sorted(
        e.arguments["to"] for e in bench.ledger.entries(turn_id) if e.what == "start" and e.tool == "send"
    ) == sorted(row.sent)
    assert all(m.content for m in bench.messages(turn_id) if m.role is Role.ASSISTANT)
    # Attempts that failed were billed too.
    assert view.usage.output_tokens == 5 * row.requests


@pytest.mark.parametrize("api", APIS)
def test_an_empty_reply_for_ever_falls_back_to_the_next_model(bench: Bench, api: Api) -> None:
    """AC-06, its variant with a second provider."""
    with answering(api, (wire(),) * 3, streams=True) as server, client(api, server.url) as model:
        turn_id = bench.submit(model="main:served", fallbacks=("second:other",))
        bench.run(turn_id, bench.runtime(models=lambda _name: model))

    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text) == (DONE, "Done.")
    assert [b["model"] for b in server.bodies] == ["served"] * 3 + ["other"]
    assert bench.events(turn_id).count("model.fallback") == 1
