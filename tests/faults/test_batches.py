"""Batches over everything that dies: whoever submits them, who carries them, and Redis.

AC-09, AC-36, AC-37, and AC-38 as far as it is of batches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Reply, Tokens, calls, hang, reply, status
from persistence import batch_views
from persistence.batch_views import BatchView
from persistence.records.batch import BatchStatus
from persistence.records.status import ExitReason, TurnStatus
from tests.faults.bench import CANARY, Bench, Started
from tests.support.processes import Process, eventually, perdure

BREAKS = "a\u0085b\u2028c\u2029d\ve\ff\rg"


@dataclass
class Batch:
    """A batch of this test: its file, what became of it, and the commands that people call for it."""

    bench: Bench
    items: Sequence[dict[str, Any]]
    options: tuple[str, ...] = ()
    end: str = "\n"
    mark: str = ""
    id: UUID | None = None
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.bench.yard.folder / self.bench.name
        self.folder.mkdir()
        data = self.mark + self.end.join(json.dumps(item, ensure_ascii=False) for item in self.items)
        (self.folder / "in.jsonl").write_bytes(data.encode())

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What stands in the result file as whole lines."""
        raw = self.output.read_bytes() if self.output.exists() else b""
        return [json.loads(line) for line in raw.split(b"\n")[:-1]]

    @property
    def view(self) -> BatchView:
        assert self.id is not None
        return batch_views.batch(self.bench.yard.database, self.id)

    @property
    def turns(self) -> list[Started]:
        """In the order of the file."""
        sql = "SELECT id, session_id FROM turns WHERE batch_id = %s ORDER BY n"
        return [Started(self.bench, *row, "shared") for row in self.bench.yard.rows(sql, self.id)]

    def coordinator(self) -> Process:
        """`perdure batch submit --output`, which follows the batch to its end, as soon as it has said which that is."""
        command = ("batch", "submit", "in.jsonl", "--output", "out.jsonl", "--json", *self.options)
        process = self.start("coordinator", *command)

        def said() -> UUID | None:
            found = [line for line in process.said.splitlines() if line.startswith("{")]
            assert found or process.is_alive, process.said
            return UUID(json.loads(found[0])["batch_id"]) if found else None

        known, self.id = self.id, eventually(said, "the coordinator knows its batch")
        assert known in (None, self.id), "the same file is the same batch"
        return process

    def call(self, *words: str) -> tuple[int, str]:
        """A command: its exit code, and what it said."""
        process = self.start(words[1], *words)
        return process.wait(within_s=60), process.said

    def wait_until(self, ended: int) -> None:
        eventually(lambda: self.view.ended >= ended, f"{ended} items have ended", within_s=60)

    def look_after_items(self, most: int = 60) -> None:
        """Have the standing checks made of the items."""
        for turn in self.turns[:most]:
            self.bench.adopt(turn.id, turn.session_id, turn.script)

    def end_notices(self) -> list[dict[str, Any]]:
        """What the services of all workers said of its end."""
        found = [line for p in self.bench.yard.processes for line in p.logged("batch.ended")]
        return [line for line in found if line["batch_id"] == str(self.id)]

    def stored_endings(self) -> int:
        sql = "SELECT count(*) FROM batch_events WHERE batch_id = %s AND type = 'batch.ended'"
        return self.bench.yard.rows(sql, self.id)[0][0]

    def start(self, name: str, *words: str) -> Process:
        env = self.bench.yard.environment()
        log = self.folder / f"{name}-{len(list(self.folder.iterdir()))}.log"
        process = Process(name, perdure(*words), env=env, cwd=self.folder, log=log)
        self.bench.yard.processes.append(process)
        return process


def model(bench: Bench, policy: Any) -> tuple[str, ...]:
    return ("--set", f"model=main:{bench.script(f'{bench.name}-items', policy)}")


@pytest.mark.parametrize(("mark", "end"), [("", "\n"), ("\ufeff", "\r\n")], ids=["plain", "BOM and CRLF"])
def test_a_result_file_that_was_cut_goes_on_with_every_character(bench: Bench, mark: str, end: str) -> None:
    """AC-09: the coordinator is killed after 3 of 5, and the file cut in the middle of a line."""
    bench.yard.workers(1)

    def says(asked: Asked) -> Reply:
        words = asked.messages[0].text.removeprefix(CANARY)
        if not asked.results:
            return calls(("echo", {"text": words}), gate=bench.gate("late") if words[0] in "45" else None)
        return reply(f"answer to {words}: {asked.results[0].text}")

    words = [f"{n} {BREAKS}" for n in range(1, 6)]
    batch = Batch(bench, [{"input": CANARY + w} for w in words], model(bench, says), end, mark)
    first = batch.coordinator()
    eventually(lambda: len(batch.lines) == 3, "three results are written", within_s=40)
    first.kill()
    asked_before = len(bench.yard.provider.requests(f"{bench.name}-items"))
    raw = batch.output.read_bytes()
    batch.output.write_bytes(raw[:-40])
    assert len(batch.lines) == 2

    second = batch.coordinator()
    bench.at("late").open()

    assert second.wait(within_s=60) == 0, second.said
    found = {line["custom_id"]: line for line in batch.lines}
    assert len(batch.lines) == 5
    assert {n: line["output_text"] for n, line in found.items()} == {
        str(n): f"answer to {w}: {w}" for n, w in enumerate(words, 1)
    }
    assert [turn.messages[0].message.text for turn in batch.turns] == [CANARY + w for w in words]
    assert [turn.results[0].content for turn in batch.turns] == words, "what tools say is kept to the letter, too"
    assert [turn.starts("echo") for turn in batch.turns] == [1] * 5, "no item was run again"
    assert asked_before == 3 * 2 + 2
    assert len(bench.yard.provider.requests(f"{bench.name}-items")) == 5 * 2, "no answer was bought again"
    batch.look_after_items()


def test_items_of_the_same_words_are_items_of_their_own(bench: Bench) -> None:
    """AC-36: coordinator and worker are killed after three; a second resume runs nothing."""
    bench.yard.workers(0)
    worker = bench.yard.start_worker("--concurrency", "1")
    worker.wait_for_log("worker.ready")
    steps = [calls(("send", {}), gate=bench.gate("first")), reply("done")]
    words = ["same" if n in (2, 3, 6, 9) else f"other {n}" for n in range(1, 11)]
    batch = Batch(bench, [{"input": f"{CANARY} {w}"} for w in words], model(bench, steps))
    first = batch.coordinator()
    for n in range(1, 4):
        bench.at("first").let(1)
        batch.wait_until(n)
    done = [turn.id for turn in batch.turns if turn.view.status.is_ending]
    assert done == [turn.id for turn in batch.turns[:3]], "one of them says what another says"

    first.kill()
    worker.kill()
    bench.at("first").open()
    bench.yard.workers(2)
    second = batch.coordinator()

    assert second.wait(within_s=60) == 0, second.said
    assert sorted(int(line["custom_id"]) for line in batch.lines) == list(range(1, 11))
    assert {line["status"] for line in batch.lines} == {"completed"}
    assert [turn.starts("send") for turn in batch.turns] == [1] * 10
    asked, before = len(bench.yard.provider.requests(f"{bench.name}-items")), batch.output.read_bytes()

    assert batch.call("batch", "resume", str(batch.id))[0] == 0
    assert batch.coordinator().wait(within_s=60) == 0

    assert batch.output.read_bytes() == before
    assert len(bench.yard.provider.requests(f"{bench.name}-items")) == asked
    assert [turn.starts("send") for turn in batch.turns] == [1] * 10
    batch.look_after_items()


def test_a_batch_ends_whatever_becomes_of_three_of_its_hundred(bench: Bench) -> None:
    """AC-37: one fails, one kills its worker up to its limit, one is over its deadline; Redis is restarted once."""
    bench.yard.workers(2)

    def special(name: str, *steps: Any, **settings: Any) -> dict[str, Any]:
        script = bench.script(f"{bench.name}-{name}", steps, repeat_last=True)
        return {"custom_id": name, "input": f"{CANARY} {name}", "settings": {"model": f"main:{script}", **settings}}

    items: list[dict[str, Any]] = [{"input": f"{CANARY} fine"} for _ in range(100)]
    items[10] = special("raises", status(401))
    items[30] = special("kills", calls(("die", {})), max_crashes=2)
    items[50] = special("is late", hang(), deadline_s=2)
    fine = [calls(("put", {}), gate=bench.gate("fine")), reply("done")]
    batch = Batch(bench, items, model(bench, fine))
    coordinator = batch.coordinator()
    bench.at("fine").let(20)
    batch.wait_until(10)

    bench.yard.stop_redis()
    bench.yard.start_servers()
    bench.yard.workers(2)  # what a supervisor does: one of them may have carried what kills
    bench.at("fine").open()

    def has_ended() -> bool:
        bench.yard.workers(2)
        return not coordinator.is_alive

    eventually(has_ended, "the batch has ended", within_s=150, every_s=0.5)
    assert coordinator.wait(within_s=1) == 2, coordinator.said
    view = batch.view
    assert (view.status, view.ended) == (BatchStatus.COMPLETED_WITH_FAILURES, 100)
    assert view.endings == {
        ExitReason.FINAL_ANSWER: 97,
        ExitReason.PROVIDER_FAILED: 1,
        ExitReason.WORKER_LOST: 1,
        ExitReason.DEADLINE: 1,
    }
    rows = {line["custom_id"]: line for line in batch.lines}
    assert (len(batch.lines), len(rows)) == (100, 100)
    reasons = {name: (rows[name]["status"], rows[name]["exit_reason"]) for name in ("raises", "kills", "is late")}
    assert reasons == {
        "raises": ("failed", "provider_failed"),
        "kills": ("failed", "worker_lost"),
        "is late": ("incomplete", "deadline"),
    }
    assert Counter(line["status"] for line in batch.lines)["completed"] == 97
    eventually(batch.end_notices, "its end was told")
    assert (len(batch.end_notices()), batch.stored_endings()) == (1, 1)
    batch.look_after_items()


def test_what_has_ended_can_be_read_after_redis_forgot_it(bench: Bench) -> None:
    """AC-38: states and results of a batch come from Postgres."""
    bench.yard.workers(1)
    batch = Batch(bench, [{"input": f"{CANARY} {n}"} for n in range(3)], model(bench, [reply("done")]))
    assert batch.coordinator().wait(within_s=60) == 0
    commands = (("show", "--json"), ("results",))
    before = [batch.call("batch", name, str(batch.id), *more) for name, *more in commands]

    bench.yard.keys.flushall()

    assert [batch.call("batch", name, str(batch.id), *more) for name, *more in commands] == before
    code, said = batch.call("batch", "show", "0198c0de-7a11-7c3e-9a52-3f2b8f6a1c04")
    assert (code, "there is no batch" in said) == (1, True)
    batch.look_after_items()


def test_an_interrupt_is_kept_while_nobody_works_and_a_resume_brings_it_all(bench: Bench) -> None:
    (worker,) = bench.yard.workers(1)
    fine = [calls(("put", {"hold": bench.hold("first")})), reply("done")]
    batch = Batch(bench, [{"input": f"{CANARY} {n}"} for n in range(60)], model(bench, fine))
    coordinator = batch.coordinator()
    eventually(lambda: sum(turn.starts("put") for turn in batch.turns) >= 30, "many are under way")
    worker.kill()

    code, said = batch.call("batch", "interrupt", str(batch.id))

    assert code == 0, said
    assert batch.view.items[TurnStatus.INTERRUPTED] >= 20, "what nobody carried has ended at once"
    assert batch.view.status is BatchStatus.RUNNING
    bench.yard.workers(1)
    assert coordinator.wait(within_s=60) == 130, coordinator.said
    assert batch.view.endings == {ExitReason.BATCH_INTERRUPTED: 60}
    assert len(batch.lines) == 60

    bench.release("first")
    code, said = batch.call("batch", "resume", str(batch.id))
    assert (code, "60 items" in said) == (0, True), said
    assert batch.coordinator().wait(within_s=90) == 0
    assert {line["status"] for line in batch.lines} == {"completed"}
    assert len(batch.lines) == 60
    assert batch.stored_endings() == len(batch.end_notices()) == 2, "each run of it ended once"
    batch.look_after_items()


def test_an_interrupt_reaches_the_items_that_are_under_way(bench: Bench) -> None:
    bench.yard.workers(1)
    steps = [calls(("obey", {"hold": bench.hold("never")})), reply("never")]
    batch = Batch(bench, [{"input": f"{CANARY} {n}"} for n in range(5)], model(bench, steps))
    coordinator = batch.coordinator()
    eventually(lambda: sum(turn.starts("obey") for turn in batch.turns) == 5, "all are under way")

    batch.call("batch", "interrupt", str(batch.id))

    assert coordinator.wait(within_s=30) == 130, coordinator.said
    assert batch.view.endings == {ExitReason.BATCH_INTERRUPTED: 5}
    assert all(turn.ledger("obey", "stopped") for turn in batch.turns)
    batch.look_after_items()


def test_an_interactive_turn_does_not_wait_behind_a_batch(bench: Bench) -> None:
    """AC-42: the items keep every slot that a batch may have, and go on keeping it. One that was just killed has none."""
    [dead] = bench.yard.workers(1)
    dead.kill()
    bench.yard.workers(1)
    steps = [reply("done", gate=bench.gate("items"))]
    batch = Batch(bench, [{"input": f"{CANARY} {n}"} for n in range(60)], model(bench, steps))
    coordinator = batch.coordinator()
    bench.at("items").wait_for(36)

    for _ in range(4):
        bench.start(reply("at once"))
    for turn in bench.turns:
        turn.wait_for_completion(within_s=10)

    assert bench.at("items").arrived == 36, "four of forty slots are kept for them"
    bench.at("items").open()
    assert coordinator.wait(within_s=60) == 0
    batch.look_after_items()


def test_a_submitter_that_is_killed_leaves_a_batch_that_the_same_command_finishes(bench: Bench) -> None:
    """It is killed while it waits for a session that another transaction holds, with its first five hundred items stored."""
    bench.yard.workers(1)
    before = bench.start(reply("hello"))
    before.wait_for_completion()
    of: list[dict[str, Any]] = [{"input": f"{CANARY} {n}"} for n in range(510)]
    of[505]["session_id"] = str(before.session_id)
    batch = Batch(bench, of, model(bench, [reply("done")]))
    count = "SELECT count(*) FROM turns t JOIN batches b ON b.id = t.batch_id WHERE b.status = 'filling'"
    with bench.yard.sql() as held:
        held("BEGIN")
        held("SELECT FROM sessions WHERE id = %s FOR UPDATE", before.session_id)
        submitter = batch.start("submitter", "batch", "submit", "in.jsonl", *batch.options)
        eventually(lambda: bench.yard.rows(count) == [(500,)], "it waits for the session")
        submitter.kill()
        held("ROLLBACK")

    assert bench.yard.rows(count) == [(500,)]
    started = "SELECT count(*) FROM turns WHERE batch_id IS NOT NULL AND started_at IS NOT NULL AND exit_reason IS NULL"
    assert bench.yard.rows(started) == [(0,)], "nothing of it runs"
    code, said = batch.call("batch", "submit", "in.jsonl", "--json", *batch.options)
    assert code == 0, said
    batch.id = UUID(json.loads(said.splitlines()[0])["batch_id"])
    assert (batch.view.size, sum(batch.view.items.values())) == (510, 510)
    batch.call("batch", "interrupt", str(batch.id))
    eventually(lambda: batch.view.status.is_ending, "it has ended", within_s=60)


def test_the_items_of_a_batch_never_spend_more_than_its_cap(bench: Bench) -> None:
    """P7, with a worker killed meanwhile: an attempt that nobody knows the cost of counts as well."""
    (victim,) = bench.yard.workers(1)
    steps = [
        calls(("put", {}), gate=bench.gate("some"), tokens=Tokens(4_000, 100)),
        reply("done", tokens=Tokens(4_000, 100)),
    ]
    own = ("--set", "max_tokens_total=20000", "--set", "max_output_tokens=1000")
    options = (*model(bench, steps), *own, "--max-tokens", "100000")
    batch = Batch(bench, [{"input": f"{CANARY} {n}"} for n in range(30)], options)
    coordinator = batch.coordinator()
    bench.at("some").wait_for(5)
    assert bench.at("some").arrived == 5, "five parts make the whole"

    victim.kill()
    bench.at("some").open()
    bench.yard.workers(1)

    assert coordinator.wait(within_s=90) == 2, coordinator.said
    view = batch.view
    assert view.endings.keys() == {ExitReason.FINAL_ANSWER, ExitReason.TOKEN_CAP}
    assert 10 <= view.endings[ExitReason.FINAL_ANSWER] <= 12
    assert view.usage.total + view.spending.estimated_tokens <= 100_000
    code, said = batch.call("batch", "resume", str(batch.id), "--max-tokens", "1000000")
    assert code == 0, said
    assert batch.coordinator().wait(within_s=90) == 0
    assert {line["status"] for line in batch.lines} == {"completed"}
    batch.look_after_items()
