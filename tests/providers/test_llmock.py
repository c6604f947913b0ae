"""llmock grades us: every fault that it knows, through each adapter and the loop of a real turn.

All turns run at the same time, each with a model name of its own, by which its faults find it. What became of each is
looked at one by one; the last test is llmock's own verdict over all of them, in which a warning counts as an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from orchestration.errors import ErrorClass as E
from orchestration.ports import ModelClient
from orchestration.providers.settings import Api
from persistence.database import Database
from persistence.records.status import ExitReason
from tests.providers.bench import APIS, client
from tests.providers.chaos import Chaos, chaos
from tests.support.ledger import Ledger
from tests.support.standing import wrong_with_session
from tests.support.workbench import Bench, pool

__all__ = ["pool"]

# So many turns at once: more would fight for the processor.
AT_ONCE = 32
# A token every 15 ms, and enough of them that a client which stops reading is seen to.
PACE_MS = 15
WORDS = " ".join(f"word{n}" for n in range(60))

# What a status means to us, and whether it is asked again: any other model call that fails so will.
STATUSES: dict[int, tuple[E, bool]] = {
    **dict.fromkeys((400, 405, 406, 411, 415, 418, 422, 426, 428, 431), (E.FORMAT_ERROR, False)),
    **dict.fromkeys((401, 403), (E.AUTH, False)),
    402: (E.BILLING, False),
    **dict.fromkeys((404, 410), (E.MODEL_NOT_FOUND, False)),
    413: (E.PAYLOAD_TOO_LARGE, False),
    451: (E.CONTENT_POLICY, False),
    **dict.fromkeys((408, 504, 522, 524), (E.TIMEOUT, True)),
    429: (E.RATE_LIMIT, True),
    **dict.fromkeys((503, 529), (E.OVERLOADED, True)),
    **dict.fromkeys((409, 424, 425, 499, 500, 501, 502, 505, 507, 520), (E.SERVER_ERROR, True)),
    599: (E.TIMEOUT, True),
}
ENDS = {
    E.PAYLOAD_TOO_LARGE: ExitReason.CONTEXT_OVERFLOW,
    E.CONTENT_POLICY: ExitReason.REFUSED,
    E.RATE_LIMIT: ExitReason.RATE_LIMITED,
}
FINAL = ExitReason.FINAL_ANSWER


@dataclass(frozen=True, eq=False)
class Case:
    """`befalls` is what llmock does to the turn, `attempts` the class of error of each model call (None for an answer)."""

    name: str
    befalls: list[dict[str, Any]]
    attempts: list[E | None]
    exit_reason: ExitReason = FINAL
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    has_fallback: bool = False

    @property
    def has_retry_after(self) -> bool:
        return any(one.get("status") in (429, 503, 504, 529) for one in self.befalls)

    @property
    def says(self) -> str | None:
        """The whole answer, where it is scripted and comes."""
        texts = [one["text"] for one in self.befalls if one.get("text")]
        return texts[0] if texts and self.exit_reason is FINAL else None


def fails(status: int, times: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"type": "fail", "status": status, "times": times, **more}


def breaks(kind: str, after: int, times: int | None = 1, **more: Any) -> dict[str, Any]:
    return {
        "type": "stream_fault",
        "kind": kind,
        "after_chunks": after,
        "times": times,
        "match": {"stream": True},
        **more,
    }


def answers(text: str = WORDS, times: int | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "reply", "text": text, "times": times, **more}


def calls(*, times: int | None = 1) -> dict[str, Any]:
    return {"type": "reply", "tool_calls": [{"name": "calculate", "arguments": {"expression": "6*7"}}], "times": times}


def slow(kind: str, seconds: float, times: int = 1) -> dict[str, Any]:
    return {"type": kind, "seconds": seconds, "times": times}


def breaks_tools(kind: str) -> dict[str, Any]:
    return {"type": "tool_fault", "kind": kind, "match": {"tools": True}}


TOOLS = {"tools": ("calculator",)}
MALFORMED = E.MALFORMED_STREAM
IMPATIENT = {"first_token_s": 2.0, "idle_s": 2.0}

CASES = [
    Case("nothing at all", [], [None]),
    Case("a scripted answer", [answers("Forty-two.")], [None]),
    *(
        Case(f"status {status}, then an answer", [fails(status)], [error, None])
        if is_retried
        else Case(f"status {status}", [fails(status)], [error], ENDS.get(error, ExitReason.PROVIDER_FAILED))
        for status, (error, is_retried) in STATUSES.items()
    ),
    *(
        Case(f"an outage of {status}", [fails(status, None)], [error] * 3, ENDS.get(error, ExitReason.PROVIDER_FAILED))
        for status, error in ((429, E.RATE_LIMIT), (500, E.SERVER_ERROR), (503, E.OVERLOADED), (529, E.OVERLOADED))
    ),
    Case("status 500 twice", [fails(500, 2)], [E.SERVER_ERROR, E.SERVER_ERROR, None]),
    Case("an outage with a fallback", [fails(500, None)], [E.SERVER_ERROR] * 3 + [None], has_fallback=True),
    Case("an overload with a fallback", [fails(529, None)], [E.OVERLOADED] * 2 + [None], has_fallback=True),
    Case("a limit with a fallback", [fails(429, None)], [E.RATE_LIMIT] * 3 + [None], has_fallback=True),
    Case("a wrong key with a fallback", [fails(401, None)], [E.AUTH, None], has_fallback=True),
    Case("a wrong name with a fallback", [fails(404, None)], [E.MODEL_NOT_FOUND, None], has_fallback=True),
    Case("a limit of half a second", [fails(429, 2, retry_after=0.5)], [E.RATE_LIMIT, E.RATE_LIMIT, None]),
    Case("a limit of two seconds", [fails(429, retry_after=2)], [E.RATE_LIMIT, None]),
    Case("an overload that asks for a wait", [fails(503, retry_after=1.5)], [E.OVERLOADED, None]),
    Case(
        "a prompt that is too long",
        [fails(400, code="context_length_exceeded", message="This model's maximum context length was exceeded.")],
        [E.CONTEXT_OVERFLOW],
        ExitReason.CONTEXT_OVERFLOW,
    ),
    *(
        Case(f"{kind} after {after} chunks", [answers(), breaks(kind, after)], [MALFORMED, None])
        for kind in ("disconnect", "truncate", "malformed")
        for after in (0, 1, 3, 20)
    ),
    *(
        Case(f"{kind} twice", [answers(), breaks(kind, 2, 2)], [MALFORMED, MALFORMED, None])
        for kind in ("disconnect", "truncate", "malformed")
    ),
    Case("disconnect for ever", [answers(), breaks("disconnect", 2, None)], [MALFORMED] * 3, ExitReason.PROVIDER_FAILED),
    Case("a stall", [answers(), breaks("stall", 6, stall_seconds=60)], [E.IDLE_TIMEOUT, None], settings=IMPATIENT),
    Case(
        "a stall before the first token",
        [answers(), breaks("stall", 0, stall_seconds=60)],
        [E.FIRST_TOKEN_TIMEOUT, None],
        settings=IMPATIENT,
    ),
    Case("a short stall", [answers(), breaks("stall", 3, stall_seconds=0.3)], [None]),
    Case("a slow first token", [slow("slow_first_token", 60)], [E.FIRST_TOKEN_TIMEOUT, None], settings=IMPATIENT),
    Case("a first token in time", [slow("slow_first_token", 0.2)], [None]),
    Case("a slow answer", [slow("delay", 10)], [E.FIRST_TOKEN_TIMEOUT, None], settings=IMPATIENT),
    Case("an answer in time", [slow("delay", 0.2)], [None]),
    Case("a scripted call", [calls()], [None, None], settings=TOOLS),
    Case("the call that it would make itself", [], [None, None], settings=TOOLS),
    Case("broken arguments", [breaks_tools("malformed_arguments")], [None, None], settings=TOOLS),
    Case("an unknown tool", [breaks_tools("unknown_tool")], [None, None], settings=TOOLS),
    *(
        Case(f"a call with {kind} in it", [calls(times=2), breaks(kind, 2)], [MALFORMED, None, None], settings=TOOLS)
        for kind in ("disconnect", "truncate")
    ),
    Case("a limit between call and answer", [calls(), fails(429)], [E.RATE_LIMIT, None, None], settings=TOOLS),
    Case(
        "everything at once",
        [fails(500), answers(), breaks("disconnect", 2)],
        [E.SERVER_ERROR, MALFORMED, None],
    ),
]  # fmt: skip

# What llmock judges by less than there is to know, and what it says of it.
DISPUTED = [
    # It looks at the last attempt alone, so no client that ever gives up is right.
    (
        Case("truncate for ever", [answers(), breaks("truncate", 2, None)], [MALFORMED] * 3, ExitReason.PROVIDER_FAILED),
        "truncated_stream_accepted",
    ),
    (
        Case("malformed for ever", [answers(), breaks("malformed", 2, None)], [MALFORMED] * 3, ExitReason.PROVIDER_FAILED),
        "malformed_chunk_ignored",
    ),
    # It goes by the status: waiting fills no empty account.
    (
        Case("an empty account", [fails(429, code="insufficient_quota")], [E.BILLING], ExitReason.PROVIDER_FAILED),
        "gave_up",
    ),
    # It knows nothing of other models: one that answers now is better than this one in a minute.
    (
        Case("a long wait with a fallback", [fails(429, retry_after=60)], [E.RATE_LIMIT, None], has_fallback=True),
        "gave_up",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Came:
    """What became of the turn of a case."""

    exit_reason: ExitReason | None
    attempts: list[str | None]
    output_text: str


@dataclass
class Walk:
    server: Chaos
    bench: Bench
    clients: dict[str, ModelClient]

    def carry(self, api: Api, number: int, case: Case) -> Came:
        model = f"{api}-{number}"
        self.server.queue(model, case.befalls)
        fallbacks = (f"{api}:{model}-next",) if case.has_fallback else ()
        # The body of a request is what llmock knows a call by, so no two turns may ask the same.
        settings = {"tools": (), "retry_base_s": 1.0, "fallbacks": fallbacks, **case.settings}
        turn_id = self.bench.submit(f"Case {number}: {case.name}.", model=f"{api}:{model}", **settings)
        runtime = self.bench.runtime(f"worker-{model}", database=self.bench.database, models=self.clients.__getitem__)
        turn = self.bench.run(turn_id, runtime)
        assert wrong_with_session(self.bench.database, turn.session_id) == []
        return Came(turn.exit_reason, self.attempts(turn_id), self.bench.view(turn_id).output_text or "")

    def all_of(self, cases: Sequence[Case], subtests: pytest.Subtests, *, first: int = 0) -> None:
        """Every case with every adapter, side by side; they are numbered from `first`."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            running = {
                (api, case): threads.submit(self.carry, api, number, case)
                for number, case in enumerate(cases, first)
                for api in APIS
            }
        for (api, case), carried in running.items():
            with subtests.test(case.name, api=api):
                came = carried.result()
                assert (came.exit_reason, came.attempts) == (case.exit_reason, case.attempts)
                if case.says is not None:
                    assert came.output_text == case.says

    def attempts(self, turn_id: UUID) -> list[str | None]:
        rows = sorted(self.bench.everything(turn_id)["model_calls"], key=lambda row: row["position"])
        return [row["error"] for row in rows]


@contextmanager
def walking(pool: Database, folder: Path, *options: str) -> Iterator[Walk]:
    """A server with these options, and a client of it for each protocol."""
    with chaos(*options) as server, ExitStack() as stack:
        made = {api.value: stack.enter_context(client(api, server.address(api), name=api.value)) for api in APIS}
        yield Walk(server, Bench(pool, Ledger(folder / "ledger.jsonl"), folder, runs_tools=False), made)


def assert_nothing_to_blame(server: Chaos) -> dict[str, Any]:
    """llmock's own verdict over everything that it was asked, warnings included."""
    report = server.report()
    verdict = server.verdict()
    assert server.pending() == [], "every fault has found its turn"
    assert (verdict["errors"], verdict["warnings"], verdict["findings"]) == (0, 0, []), report.stdout
    assert (report.returncode, "PASS" in report.stdout) == (0, True), report.stdout
    return verdict


def test_llmock_finds_nothing_to_blame_or_to_warn_of_in_any_turn(
    pool: Database, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with walking(pool, tmp_path, "--stream-chunk-delay-ms", str(PACE_MS)) as walk:
        # llmock measures their pauses, which a busy processor would draw out: they have it for themselves.
        measured = [case for case in CASES if len(case.attempts) > 2 and not case.has_retry_after]
        walk.all_of(measured, subtests)
        walk.all_of([case for case in CASES if case not in measured], subtests, first=len(measured))
        verdict = assert_nothing_to_blame(walk.server)

    assert verdict["faults_injected"] > len(CASES)


def test_what_llmock_says_of_turns_that_it_does_not_see_whole(
    pool: Database, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with walking(pool, tmp_path, "--stream-chunk-delay-ms", str(PACE_MS)) as walk:
        walk.all_of([case for case, _ in DISPUTED], subtests)
        findings = walk.server.verdict()["findings"]

    assert sorted(f["code"] for f in findings) == sorted([code for _, code in DISPUTED] * len(APIS))


def test_llmock_finds_nothing_to_blame_where_it_enforces_quotas(pool: Database, tmp_path: Path) -> None:
    """Two calls of which the second is a little more than is left of the minute: it waits for as long as it was told."""
    with walking(pool, tmp_path, "--tpm", "100000") as walk:
        for number, api in enumerate(APIS):
            with client(api, walk.server.address(api), name=api.value, key=f"sk-quota-{api}") as own:
                case = Case("a quota", [], [None, E.RATE_LIMIT, None], settings={**TOOLS, "max_output_tokens": 50_200})
                came = replace(walk, clients={api.value: own}).carry(api, number, case)
            assert (came.exit_reason, came.attempts) == (case.exit_reason, case.attempts)

        assert_nothing_to_blame(walk.server)


def test_llmock_finds_nothing_to_blame_where_it_has_a_window(pool: Database, tmp_path: Path) -> None:
    """Turn after turn of one session, until the window is full: the request that is refused is never sent again."""
    with walking(pool, tmp_path, "--context-window", "6000", "--response-style", "static") as walk:
        for api in APIS:
            turn_ids: list[UUID] = []
            for number in range(9):
                session_id = walk.bench.view(turn_ids[0]).session_id if turn_ids else None
                prompt = f"{api} {number}: " + "word " * 800
                turn_ids.append(walk.bench.submit(prompt, session_id=session_id, model=f"{api}:m", tools=()))
                runtime = walk.bench.runtime(database=walk.bench.database, models=walk.clients.__getitem__)
                assert walk.bench.run(turn_ids[-1], runtime).exit_reason is FINAL
            attempts = [error for turn_id in turn_ids for error in walk.attempts(turn_id)]
            assert E.CONTEXT_OVERFLOW in attempts
            assert "compression.done" in [e for turn_id in turn_ids for e in walk.bench.events(turn_id)]

        assert_nothing_to_blame(walk.server)
