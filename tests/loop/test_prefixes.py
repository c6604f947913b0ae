"""Each request begins with the bytes of the one before, as its provider received them: only so is a prompt cache of use.

Over HTTP, through every adapter, with whatever befalls a long turn. A fallback and a compression are the only two that
may change what was sent before, and only what they have to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

import pytest

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, calls, reply, status
from orchestration import compression
from orchestration.ports import ModelClient
from orchestration.providers.settings import Api
from persistence import inbox
from persistence.errors import LeaseLost
from persistence.records.message import Origin
from persistence.records.status import ExitReason
from tests.providers.bench import APIS, client
from tests.support import contexts
from tests.support.provider import ScriptedProvider, provider
from tests.support.workbench import Bench

__all__ = ["provider"]

ITERATIONS = 50
MARK = b',"cache_control":{"type":"ephemeral"}'
THINKING = re.compile(rb'\{"type":"thinking",[^{}]*\},')
HISTORY = {Api.OPENAI_CHAT: b"messages", Api.OPENAI_RESPONSES: b"input", Api.ANTHROPIC: b"messages"}
PROMPT = "You look at “things”.\n\tOne at a time; say \\n what you saw."
CONTEXT = ("date:Europe/Berlin", "file:notes.md", "tests.support.contexts:memory", "tests.support.contexts:plugin")


@dataclass(frozen=True)
class Sent:
    """One body as it was received: what it begins with, the conversation without the bracket that ends it, and marks."""

    api: Api
    raw: bytes
    head: bytes
    conversation: bytes
    marks: int

    @classmethod
    def of(cls, api: Api, raw: bytes) -> Sent:
        start = raw.index(b',"%s":[' % HISTORY[api])
        assert raw.endswith(b"]}")
        fields, conversation = raw[:start], raw[start:-2]
        if api is Api.OPENAI_CHAT:  # there the system prompt is the first message
            return cls(api, raw, b"", conversation, 0)
        first = b',"system":' if api is Api.ANTHROPIC else b',"instructions":'
        head = fields[fields.index(first) :] if first in fields else b""
        return cls(api, raw, head.replace(MARK, b""), conversation.replace(MARK, b""), raw.count(MARK))

    def continues(self, other: Sent) -> bool:
        """Whether this request is the other one and more: the same prompt and tools, and then the same conversation."""
        return self.head == other.head and self.conversation.startswith(other.conversation)


@dataclass
class Recorder:
    """What the server received, in order. `answer` says what comes back; `at` does something at the nth request."""

    api: Api
    answer: Callable[[Asked], Answer]
    at: dict[int, Callable[[], object]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)

    def __call__(self, asked: Asked) -> Answer:
        self.sent.append(Sent.of(self.api, asked.raw))
        self.keys.add(asked.body.get("prompt_cache_key"))
        if asked.system == compression.SYSTEM:
            return reply("## Done\n1. Things were looked at. " + "It said so. " * 20)
        made = self.at.pop(len(self.sent), None)
        what = made() if made else None
        if isinstance(what, str):
            return status(500) if what == "fails" else status(400, what)
        return self.answer(asked)


def looks(asked: Asked, times: int, *, thinks: bool = True) -> Answer:
    """Looks at one thing after another, then says that it is done. It thinks where the protocol takes that back."""
    n = asked.assistant_messages_in_turn
    if asked.api == "openai" or not thinks:
        return calls(("look", f'{{"what":  "thing {n} ünï"}}'), text=f"Step {n}.") if n < times else reply("Done.")
    if n < times:
        return calls(("look", f'{{"what":  "thing {n} ünï \\u0041"}}'), text=f"Step {n}.", thinking=f"Thought {n}.")
    return reply("Done.", thinking="So that was all.")


class Workers:
    """Carries turns to their end; each time that one is left, another worker with clients of its own goes on."""

    def __init__(self, bench: Bench, provider: ScriptedProvider, api: Api) -> None:
        self.bench, self._provider, self._api = bench, provider, api
        self.now = bench.runtime()
        self.used = 0

    def carry(self, turn_id: UUID) -> None:
        while not self.bench.view(turn_id).status.is_ending:
            self.used += 1
            with self._client("main") as main, self._client("other") as other:
                clients = {"main": main, "other": other}
                self.now = self.bench.runtime(f"worker-{self.used}", models=clients.__getitem__)
                with suppress(LeaseLost):
                    self.bench.run(turn_id, self.now)
            self.bench.kill_owner(turn_id)

    def _client(self, name: str) -> AbstractContextManager[ModelClient]:
        return client(self._api, self._provider.url, name=name, key=self._provider.api_key, prompt_cache=True)


@pytest.mark.parametrize("api", APIS)
def test_fifty_iterations_with_memory_a_steer_and_restarts_keep_every_byte(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    (bench.workspace / "notes.md").write_text('Likes "green" – \\n \t tabs', "utf-8")
    contexts.asked.clear()
    workers = Workers(bench, provider, api)
    turns: list[UUID] = []
    recorder = Recorder(
        api,
        lambda asked: looks(asked, ITERATIONS),
        {
            1: lambda: "fails",
            10: lambda: inbox.steer(bench.database, turns[-1], "And “quickly”,\nplease."),
            15: lambda: workers.now.registry.drain(),
            25: lambda: bench.kill_owner(turns[-1]),
            40: lambda: "fails",
        },
    )
    model = provider.script("prefix", recorder)

    def submit(prompt: str, **more: object) -> UUID:
        settings = {"model": f"main:{model}", "system_prompt": PROMPT, "context": CONTEXT, "iterations": 60, **more}
        turns.append(bench.submit(prompt, **settings))  # type: ignore[arg-type]
        return turns[-1]

    workers.carry(submit("Look at fifty things."))
    assert bench.view(turns[0]).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.view(turns[0]).iterations_used == ITERATIONS + 1
    in_first = len(recorder.sent)
    recorder.answer = lambda asked: looks(asked, 2)
    workers.carry(submit("And at two more.", session_id=bench.view(turns[0]).session_id))

    assert workers.used == 4
    assert in_first == ITERATIONS + 1 + 3  # two that failed, one that was killed
    assert len(recorder.sent) == in_first + 3
    assert Origin.STEER in {m.origin for m in bench.messages(turns[0])}
    assert len(contexts.asked) == 2
    broken = [n for n, (one, other) in enumerate(pairwise(recorder.sent), 1) if not other.continues(one)]
    assert broken == []
    assert [one.raw == other.raw for one, other in pairwise(recorder.sent)].count(True) == 3
    for one in recorder.sent:
        assert one.marks == (min(4, 1 + len(json.loads(one.raw)["messages"])) if api is Api.ANTHROPIC else 0)
    assert len(recorder.keys) == 1
    assert (recorder.keys == {None}) is (api is Api.ANTHROPIC)


@pytest.mark.parametrize("api", APIS)
def test_a_fallback_adds_a_line_to_the_prompt_and_the_next_turn_takes_it_back(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    workers = Workers(bench, provider, api)
    at_first = Recorder(
        api, lambda asked: looks(asked, 3, thinks=False), {3: lambda: "fails", 4: lambda: "fails", 5: lambda: "fails"}
    )
    stands_in = Recorder(api, lambda asked: looks(asked, 3, thinks=False))
    models = {
        "model": f"main:{provider.script('first', at_first)}",
        "fallbacks": (f"other:{provider.script('second', stands_in)}",),
        "system_prompt": PROMPT,
    }
    workers.carry(first := bench.submit("Look at three things.", **models))
    workers.carry(bench.submit("Once more.", session_id=bench.view(first).session_id, **models))

    assert bench.events(first).count("model.fallback") == 1
    assert all(other.continues(one) for one, other in pairwise(at_first.sent))
    assert all(other.continues(one) for one, other in pairwise(stands_in.sent))
    before, after = at_first.sent[4], stands_in.sent[0]
    assert not after.continues(before)
    added = b"\\n\\nYou are scripted-second, standing in for another model that could not answer."
    assert after.raw.count(added) == 1
    undone = Sent.of(api, after.raw.replace(added, b""))
    assert undone.head == before.head
    if api is not Api.OPENAI_RESPONSES:  # there an answer's items hold ids, which are for their issuer alone
        assert undone.conversation == before.conversation
    assert at_first.sent[-1].continues(before)


@pytest.mark.parametrize("api", APIS)
def test_a_compression_changes_the_middle_and_nothing_before_it(
    bench: Bench, provider: ScriptedProvider, api: Api
) -> None:
    workers = Workers(bench, provider, api)
    recorder = Recorder(api, lambda _asked: looks_long(len(recorder.sent)))
    turn_id = bench.submit(
        "Look at things.",
        model=f"main:{provider.script('long', recorder)}",
        system_prompt=PROMPT,
        context_window=16_000,
        max_output_tokens=2_000,
        context=("tests.support.contexts:memory",),
    )
    workers.carry(turn_id)

    done = bench.events(turn_id).count("compression.done")
    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert done >= 2
    turn_of = [one for one in recorder.sent if _is_of_the_turn(one)]
    assert len(recorder.sent) - len(turn_of) == done  # each summary is a request of its own
    changed = [(one, other) for one, other in pairwise(turn_of) if not other.continues(one)]
    assert len(changed) == done
    for one, other in changed:
        assert other.head == one.head
        kept = _common(one.conversation, other.conversation)
        assert b"Look at things." in kept
        assert b"The user likes green." in kept


def looks_long(n: int) -> Answer:
    return calls(("look", json.dumps({"what": f"{n} " * 800})), text=f"Step {n}.") if n < 40 else reply("Done.")


def _is_of_the_turn(one: Sent) -> bool:
    return b"You keep the memory of an AI agent" not in one.raw


def _common(one: bytes, other: bytes) -> bytes:
    n = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:n]


def test_the_proof_has_teeth() -> None:
    def sent(api: Api, body: Sequence[tuple[str, object]]) -> Sent:
        return Sent.of(api, json.dumps(dict(body), separators=(",", ":")).encode())

    message, more = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    whole = sent(Api.OPENAI_CHAT, [("model", "m"), ("messages", [message, more])])
    part = sent(Api.OPENAI_CHAT, [("model", "m"), ("messages", [message])])
    other = sent(Api.OPENAI_CHAT, [("model", "m"), ("messages", [{**message, "content": "A"}])])
    assert whole.continues(part)
    assert not part.continues(whole)
    assert not whole.continues(other)
    one = sent(Api.ANTHROPIC, [("model", "m"), ("system", "s"), ("messages", [message])])
    assert not sent(Api.ANTHROPIC, [("model", "m"), ("system", "t"), ("messages", [message])]).continues(one)


def test_a_repair_leaves_thinking_out_and_changes_nothing_else(bench: Bench, provider: ScriptedProvider) -> None:
    api = Api.ANTHROPIC
    workers = Workers(bench, provider, api)
    refusal = "messages.1.content.0: Invalid `signature` in `thinking` block"
    recorder = Recorder(api, lambda asked: looks(asked, 5), {4: lambda: refusal})
    turn_id = bench.submit("Look.", model=f"main:{provider.script('signed', recorder)}", system_prompt=PROMPT)
    workers.carry(turn_id)

    assert bench.view(turn_id).exit_reason is ExitReason.FINAL_ANSWER
    assert bench.events(turn_id).count("request.repaired") == 1
    broken = [n for n, (one, other) in enumerate(pairwise(recorder.sent), 1) if not other.continues(one)]
    assert broken == [4]
    before, after = recorder.sent[3], recorder.sent[4]
    assert before.head == after.head
    assert THINKING.search(before.conversation)
    assert THINKING.sub(b"", before.conversation) == after.conversation
