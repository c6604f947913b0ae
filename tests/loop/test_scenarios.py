"""Acceptance scenarios with every protocol, over HTTP, on a provider that refuses what the real ones refuse."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ops.dev.scripted_provider.book import Recorded
from ops.dev.scripted_provider.script import BreakKind, Reply, Stage, attempts, broken, calls, reply, status
from orchestration import history
from orchestration.live import Mark, Nobody, Unheard, Words
from orchestration.ports import Delta, ModelClient
from orchestration.providers.settings import Api
from persistence.database import Database
from persistence.records.message import Result
from persistence.records.status import ExitReason, TurnStatus
from tests.providers.bench import APIS, client
from tests.support.ledger import Ledger, gate
from tests.support.provider import ScriptedProvider, provider
from tests.support.workbench import Bench, wait_until

__all__ = ["provider"]

_GATE = "of the scenarios"
_KINDS: tuple[BreakKind, ...] = ("reset", "close", "end", "truncate")
_STAGES: tuple[Stage, ...] = ("before-byte", "mid-text", "mid-args", "after-last-delta")
# Emoji with joiners and skin tones, right to left, combining marks, four bytes: none of it is to be changed.
_GOOD = "👩‍👩‍👧‍👦 👍🏽 مرحبا שלום é ộ 𝒳 日本 \u2028\u2029\x85\x0b\x0c end"


class _Listener(Nobody):
    """Hears the words of every attempt."""

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    def words(self, mark: Mark) -> Words:  # noqa: ARG002 (as the protocol names it)
        heard = self._heard

        class Kept(Unheard):
            def __call__(self, delta: Delta) -> None:
                heard.append(delta.text)

        return Kept()


class Scene:
    """Turns of one session of one provider."""

    def __init__(self, bench: Bench, provider: ScriptedProvider, model_client: ModelClient) -> None:
        self.bench = bench
        self.provider = provider
        self.heard: list[str] = []
        self._client = model_client
        self._scripts = 0

    def submit(self, *steps: Any, prompt: str = "Do it.", session_id: UUID | None = None, **settings: Any) -> UUID:
        self._scripts += 1
        model = self.provider.script(f"scene-{self._scripts}", steps, repeat_last=True)
        return self.bench.submit(prompt, session_id=session_id, model=f"main:{model}", **settings)

    def runtime(self) -> Any:
        return self.bench.runtime(models=lambda _name: self._client, live=_Listener(self.heard))

    def run(self, *steps: Any, **how: Any) -> UUID:
        turn_id = self.submit(*steps, **how)
        self.bench.run(turn_id, self.runtime())
        return turn_id

    def follows(self, turn_id: UUID) -> None:
        """Standing check 6: a turn chained to this one works at its first request."""
        before = len(self.provider.requests())
        following = self.run(reply("Hello again."), prompt="And now?", session_id=self.bench.view(turn_id).session_id)
        assert self.bench.view(following).exit_reason is ExitReason.FINAL_ANSWER
        assert len(self.provider.requests()) == before + 1

    def requests(self) -> list[Recorded]:
        return self.provider.requests(f"scene-{self._scripts}")


@pytest.fixture
def bench(pool: Database, ledger: Ledger, tmp_path: Path) -> Generator[Bench]:
    made = Bench(pool, ledger, tmp_path)
    yield made
    made.check()


@pytest.fixture(params=APIS, ids=str)
def scene(request: pytest.FixtureRequest, bench: Bench, provider: ScriptedProvider) -> Generator[Scene]:
    api: Api = request.param
    with client(api, provider.url, key=provider.api_key) as made:
        yield Scene(bench, provider, made)


def test_an_interrupt_leaves_no_call_unanswered(scene: Scene) -> None:
    """AC-01: one thread; the first call is done, the second is interrupted, the third never runs."""
    bench = scene.bench
    gate(_GATE).clear()
    turn_id = scene.submit(
        calls(("look", {}, "a"), ("hold", {"name": _GATE}, "b"), ("send", {}, "c")), reply("never"), tool_threads=1
    )
    runtime = scene.runtime()
    fetch = bench.start(turn_id, runtime)
    wait_until(lambda: "b" in bench.ledger.starts(turn_id))

    bench.interrupt(turn_id, runtime)

    assert fetch().status is TurnStatus.INTERRUPTED
    assert bench.statuses(turn_id) == {"a": "succeeded", "b": "interrupted", "c": "not_run"}
    assert bench.ledger.starts(turn_id) == ["a", "b"]
    scene.follows(turn_id)


def test_text_that_nothing_can_take_is_cleaned_once_and_the_same_everywhere(scene: Scene) -> None:
    """AC-07 and AC-08."""
    bench = scene.bench
    odd = [("odd", {"kind": kind}) for kind in ("nul", "bytes", "key", "half")]
    turn_id = scene.run(
        calls(*odd, ("look", '{"what":"a\\ud800b\\u0000c"}'), text="on it\x00"),
        reply("end \x00 \udfff \U0001f600"),
        prompt="p\x00q\ud800",
    )

    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "end \ufffd \ufffd \U0001f600")
    assert "".join(scene.heard) == "on it\ufffdend \ufffd \ufffd \U0001f600"
    assert bench.messages(turn_id)[0].text == "p\ufffdq\ufffd"
    told = [r.content for r in bench.results(turn_id).values()]
    for request in scene.requests():
        sent = json.dumps(request.body, ensure_ascii=False)
        assert sent.encode().decode() == sent
        assert "p\ufffdq\ufffd" in sent
    last = json.dumps(scene.requests()[-1].body)
    assert all(json.dumps(text)[1:-1] in last.replace('\\\\"', '\\"') for text in told if '"' not in text)
    scene.follows(turn_id)


def test_text_that_is_good_is_left_as_it_is(scene: Scene) -> None:
    """AC-08, the control run."""
    turn_id = scene.run(calls(("look", {"what": _GOOD}), text=_GOOD), reply(_GOOD), prompt=_GOOD)

    bench = scene.bench
    assert bench.view(turn_id).output_text == _GOOD
    assert [m.text for m in bench.messages(turn_id)] == [_GOOD, _GOOD, "", _GOOD]
    assert [r.content for r in bench.results(turn_id).values()] == [f"saw {_GOOD}"]
    assert (
        json.dumps(scene.requests()[-1].body, ensure_ascii=False).count(json.dumps(_GOOD, ensure_ascii=False)[1:-1])
        >= 2
    )


@pytest.mark.parametrize("stage", _STAGES)
def test_a_broken_stream_repeats_that_call_alone_with_the_same_request(scene: Scene, stage: Stage) -> None:
    """AC-23: reset, closed, ended without a mark and cut within a chunk, at each place of a reply."""
    for kind in _KINDS:
        half: Reply = calls(("send", {"to": "bob"}), text="Again:") if stage == "mid-args" else reply("half " * 20)
        turn_id = scene.run(calls(("send", {})), attempts(broken(half, kind, stage), reply("done")))

        view = scene.bench.view(turn_id)
        assert (view.exit_reason, view.output_text) == (ExitReason.FINAL_ANSWER, "done"), kind
        _, second, third = scene.requests()
        assert second.messages == third.messages, kind
        assert len(scene.bench.ledger.starts(turn_id)) == 1, kind
        errors = [c["error"] for c in scene.bench.everything(turn_id)["model_calls"] if c["error"]]
        assert len(errors) == 1, "the broken attempt is on record"
        told = [m.text for m in scene.bench.messages(turn_id)]
        assert not any("half" in text or "Again" in text for text in told), "nothing of it is in the history"


@pytest.mark.parametrize("fault", [None, status(500)], ids=["at once", "after a failure"])
def test_a_spent_budget_ends_with_one_grace_call_that_may_call_nothing(scene: Scene, fault: Any) -> None:
    """AC-26."""
    steps = [calls(("look", {"what": f"{n}"})) for n in range(3)]
    last = reply("partial summary") if fault is None else attempts(fault, reply("partial summary"))
    turn_id = scene.run(*steps, last, iterations=3)

    view = scene.bench.view(turn_id)
    assert (view.status, view.exit_reason) == (TurnStatus.INCOMPLETE, ExitReason.BUDGET_EXHAUSTED)
    assert view.output_text == "partial summary"
    requests = scene.requests()
    assert len(requests) == 4 + (fault is not None)
    assert "none" in json.dumps(requests[-1].body["tool_choice"] if requests[-1].body else None)
    assert len(scene.bench.ledger.starts(turn_id)) == 3
    scene.follows(turn_id)


def test_a_grace_reply_without_words_leaves_an_honest_sentence(scene: Scene) -> None:
    """AC-26, the empty variant."""
    turn_id = scene.run(calls(("look", {})), reply(""), iterations=1, attempts=2)

    view = scene.bench.view(turn_id)
    assert view.exit_reason is ExitReason.BUDGET_EXHAUSTED
    assert "1 iteration" in (view.output_text or "")
    scene.follows(turn_id)


def test_calls_of_a_grace_reply_are_answered_and_never_run(scene: Scene) -> None:
    """AC-27."""
    steps = [calls(("look", {"what": f"{n}"})) for n in range(2)]
    turn_id = scene.run(*steps, calls(("send", {}), ("look", {}), text="let me check"), iterations=2)

    bench = scene.bench
    assert (bench.view(turn_id).exit_reason, bench.view(turn_id).output_text) == (
        ExitReason.BUDGET_EXHAUSTED,
        "let me check",
    )
    assert len(scene.requests()) == 3
    assert len(bench.ledger.starts(turn_id)) == 2
    last = [b for b in bench.messages(turn_id)[-1].content if isinstance(b, Result)]
    assert [b.content for b in last] == [history.NOT_RUN_BUDGET] * 2
    scene.follows(turn_id)
