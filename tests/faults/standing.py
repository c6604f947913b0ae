"""What must hold after every scenario, whatever happened in it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

from ops.dev.scripted_provider.script import reply
from persistence.records.message import Call, CallStatus, Effect, Result, Role
from persistence.records.status import TurnStatus
from tests.faults.bench import CANARY, Bench, Started
from tests.support.processes import eventually
from workers import stack
from workers.results import KIND

# Sessions that are asked to go on after a test; more would cost time and show nothing new.
_FOLLOWED = 3
_STATES = {
    TurnStatus.COMPLETED: "SUCCESS",
    TurnStatus.INCOMPLETE: "SUCCESS",
    TurnStatus.FAILED: "FAILURE",
    TurnStatus.INTERRUPTED: "REVOKED",
}


def check(bench: Bench) -> None:
    """Raises AssertionError with what does not hold. Leaves the workers alive and idle."""
    bench.yard.workers(max(1, len([w for w in bench.yard.standing if w.is_alive])))
    for turn in bench.turns:
        _ended_once(turn)
        _history_is_whole(turn)
        _ledger_is_right(turn)
        _stayed_in_its_budget(turn)
    bench.yard.provider.assert_none_refused()
    _sessions_go_on(bench)
    _nothing_is_left(bench)
    _no_secret_is_out(bench)


def _ended_once(turn: Started) -> None:
    view, types = turn.view, turn.event_types()
    assert view.status.is_ending, f"{turn.id} is {view.status}"
    assert types.count("turn.ended") == view.resumes + 1, types
    assert types[-1] == "turn.ended", types
    assert turn.events[-1].payload["exit_reason"] == view.exit_reason
    assert [e.seq for e in turn.events] == list(range(1, len(types) + 1)), "a gap or a repeat in the events"
    eventually(lambda: turn.result.state == _STATES[view.status], f"the result of {turn.id} is stored")


def _history_is_whole(turn: Started) -> None:
    messages = turn.messages
    seqs = [m.message.seq for m in messages]
    assert all(b - a == 1 for a, b in pairwise(seqs)), seqs
    assert all(not m.open_calls & {c.id for c in turn.calls} for m in messages), "an ended turn has open calls"
    for n, stored in enumerate(messages):
        asked = [b.id for b in stored.message.content if isinstance(b, Call)]
        if not asked:
            continue
        answer = messages[n + 1].message
        assert answer.role is Role.TOOL, f"{turn.id}: calls are not answered at once"
        assert [b.id for b in answer.content if isinstance(b, Result)] == asked, f"{turn.id}: not one result a call"
    ids = [r.id for r in turn.results]
    assert len(ids) == len(set(ids)), f"{turn.id}: a call was answered twice"


def _ledger_is_right(turn: Started) -> None:
    """No call was started again whose result was stored, and none that must not be repeated was started twice."""
    lines = [x for x in turn.bench.yard.ledger_lines() if x["turn"] == str(turn.id)]
    starts = Counter(x["call"] for x in lines if x["what"] == "start")
    ends = {x["call"] for x in lines if x["what"] == "end"}
    results = {r.id: r for r in turn.results}
    effects = _effects(turn)
    for call, count in starts.items():
        assert call in results, f"{call} ran and has no answer"
        if effects[call] == Effect.ONCE:
            assert count == 1, f"{call} must run once, and was started {count} times"
            if call not in ends:
                assert results[call].status in (CallStatus.UNKNOWN, CallStatus.INTERRUPTED), results[call]
    for result in results.values():
        if result.status is CallStatus.SUCCEEDED:
            assert result.id in ends, f"{result.id} is told to have succeeded and never ended"
        if result.status is CallStatus.NOT_RUN:
            assert result.id not in starts, f"{result.id} is told not to have run"


def _effects(turn: Started) -> dict[str, str]:
    return dict(turn.bench.yard.rows("SELECT call_id, effect FROM tool_calls WHERE turn_id = %s", turn.id))


def _stayed_in_its_budget(turn: Started) -> None:
    answered = turn.event_types().count("model.answered")
    assert answered <= turn.view.iterations_max + 1
    # No answer that was committed was bought again: a request of a step comes after every answer of an earlier one.
    steps = [r.step for r in turn.requests if r.step is not None]
    is_told = "compression.done" not in turn.event_types()  # else a request no longer says how many came before it
    assert not is_told or steps == sorted(steps), (
        f"{turn.id}: the model was asked for an answer that was there: {steps}"
    )


def _sessions_go_on(bench: Bench) -> None:
    """A following turn of the same session works at its first request, so the workers take new work, too."""
    name = f"{bench.name}-after"
    model = bench.script(name, lambda _: reply("and on"))
    sessions = dict.fromkeys(t.session_id for t in reversed(bench.turns))
    for session in list(sessions)[:_FOLLOWED]:
        submitted = bench.yard.client.submit(
            f"{CANARY} {name}", session_id=session, overrides={"model": f"main:{model}"}
        )
        Started(bench, submitted.turn_id, session, name).wait_for_completion()
    assert len(bench.yard.provider.requests(name)) == min(len(sessions), _FOLLOWED)
    bench.yard.provider.assert_none_refused()


_LEFT = {
    "live turns": "SELECT count(*) FROM turns WHERE exit_reason IS NULL",
    "leases": "SELECT count(*) FROM turns WHERE lease_expires_at IS NOT NULL OR worker IS NOT NULL",
    "news nobody settled": "SELECT count(*) FROM inbox WHERE state = 'new'",
    "unsent results": f"SELECT count(*) FROM deliveries WHERE state = 'pending' AND kind = '{KIND}'",
    "open calls": "SELECT count(*) FROM tool_calls WHERE status IN ('open', 'started')",
    "open transactions": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND state LIKE 'idle in transaction%'",
    "waits for locks": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "advisory locks beside the leader's": "SELECT greatest(count(*) - 1, 0) FROM pg_locks WHERE locktype = 'advisory'"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
}


def _nothing_is_left(bench: Bench) -> None:
    yard = bench.yard
    with yard.sql() as run:
        for what, query in _LEFT.items():
            eventually(lambda query=query: run(query) == [(0,)], f"no {what}", within_s=60)
    queued = ("perdure.interactive", "perdure.batch", "unacked")
    # A worker that dies between taking a message and acknowledging it leaves it to the visibility timeout and its sweep.
    eventually(lambda: not any(yard.keys.exists(key) for key in queued), "no message is in the queues", within_s=100)
    eventually(lambda: not list(yard.keys.scan_iter("perdure:interrupt:*")), "no interrupt flag is set", within_s=15)
    expected = {p.pid for p in yard.processes if p.is_alive}

    def strangers() -> list[int]:
        own = {child.pid for p in yard.processes if p.is_alive for child in p.children()} | expected
        return [p.pid for p in yard.living() if p.pid not in own]

    eventually(lambda: not strangers(), "no process is left that nobody looks after", within_s=15)


def _no_secret_is_out(bench: Bench) -> None:
    yard = bench.yard
    told = {f"the log of {p.name}": p.said for p in yard.processes}
    told |= {f"the log of {name}": path.read_text("utf-8", "replace") for name, path in stack.logs(yard.home).items()}
    told |= {f"Redis key {key}": f"{key} {_value(yard.keys, key)}" for key in yard.keys.scan_iter()}
    told |= {f"the command line of {p.pid}": " ".join(p.cmdline()) for p in yard.living()}
    told["stored events"] = json.dumps(yard.rows("SELECT type || payload::text FROM events"))
    told["sentences about failures"] = json.dumps(yard.rows("SELECT result ->> 'message' FROM turns"))
    for where, text in told.items():
        for secret in (*yard.secrets, CANARY):
            assert secret not in text, f"a secret or a prompt is in {where}"


def _value(keys: Any, key: str) -> Any:
    """What a Redis key holds, whatever its type."""
    readers = {
        "string": keys.get,
        "hash": keys.hgetall,
        "list": lambda k: keys.lrange(k, 0, -1),
        "set": keys.smembers,
        "zset": lambda k: keys.zrange(k, 0, -1),
    }
    kind = keys.type(key)
    return readers[kind](key) if kind in readers else None
