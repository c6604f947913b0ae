"""Answers that a provider makes by itself: kept before they are waited for, fetched by any worker, bought once."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

from orchestration.background import MOST_FAILED_LOOKS
from orchestration.errors import AnswerLost, ConfigError, ErrorClass, ModelError
from orchestration.live import Mark, Nobody, Unheard, Words
from orchestration.loop import run_turn
from orchestration.ports import Delta, Finish, ModelRequest, Reply, Started, StopSignal
from orchestration.providers.catalog import connect
from orchestration.providers.settings import Api, ProviderSettings
from orchestration.runtime import Runtime
from persistence import inbox, interrupts, resumption
from persistence.records.message import Role
from persistence.records.status import ExitReason, TurnStatus, WaitingFor
from persistence.records.usage import Usage
from tests.support.background_model import BackgroundModel
from tests.support.scripted_model import Scripted, asks, says
from tests.support.workbench import Bench, wait_until

SERVER_ERROR = ModelError(ErrorClass.SERVER_ERROR, "500", status=500)
LOST = AnswerLost(ErrorClass.SERVER_ERROR, "it failed there")
FOR_EVER = 10**9


def script(bench: Bench, *replies: Scripted, **how: Any) -> BackgroundModel:
    made = BackgroundModel(*replies, **how)
    bench.model = made
    return made


def records(bench: Bench, turn_id: UUID) -> list[dict[str, Any]]:
    return sorted(bench.everything(turn_id)["model_calls"], key=lambda r: r["position"])


def left_pending(bench: Bench, **settings: Any) -> UUID:
    """A turn whose worker has started an answer and let go of the turn, which waits for the next look."""
    model = bench.model
    assert isinstance(model, BackgroundModel)
    usual, model.look_again_s = model.look_again_s, 100.0
    turn_id = bench.submit(**settings)
    assert bench.run(turn_id).status is TurnStatus.WAITING
    model.look_again_s = usual
    assert bench.row(turn_id)["pending"] is not None
    return turn_id


def ride(bench: Bench, turn_id: UUID, *, most: int = 200) -> TurnStatus:
    """Carry a turn through its waits, up to its end."""
    for _ in range(most):
        status = bench.run(turn_id).status
        if status.is_ending:
            return status
        bench.end_wait(turn_id)
    raise AssertionError("the turn does not end")


def make_older(bench: Bench, turn_id: UUID, seconds: float) -> None:
    sql = "UPDATE turns SET pending_since = pending_since - make_interval(secs => %(s)s) WHERE id = %(id)s"
    bench.database.rows(sql, {"id": turn_id, "s": seconds})


# --- started, kept, fetched


def test_a_turn_whose_answers_are_made_in_the_background_is_like_any_other(bench: Bench) -> None:
    model = script(bench, asks(("send", "{}")), says("Done."))

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, bench.view(turn.id).output_text) == (ExitReason.FINAL_ANSWER, "Done.")
    assert (model.calls, len(model.looks), model.interrupted) == (2, 4, [])
    assert bench.events(turn.id).count("model.started") == bench.events(turn.id).count("model.answered") == 2
    assert [(r["error"], r["iteration"]) for r in records(bench, turn.id)] == [(None, 1), (None, 2)]
    row = bench.row(turn.id)
    assert (row["pending"], row["pending_since"], row["unknown_attempts"]) == (None, None, 0)


def test_the_words_of_the_answer_are_heard_once_it_is_there(bench: Bench) -> None:
    script(bench, says("Done."))
    heard: list[str] = []

    class Listening(Nobody):
        def words(self, mark: Mark) -> Words:
            class Heard(Unheard):
                def __call__(self, delta: Delta) -> None:
                    heard.append(f"{mark.model}, {mark.iteration}: {delta.text}")

            return Heard()

    bench.run(bench.submit(), bench.runtime(live=Listening()))

    assert heard == ["scripted:scripted, 1: Done."]


def test_what_is_pending_is_stored_before_anybody_looks_for_it(bench: Bench) -> None:
    model = script(bench, says("Done."))
    turn_id = bench.submit()
    stored: list[Any] = []
    fetch = model.fetch

    def looking(*args: Any, **how: Any) -> Any:
        stored.append(bench.row(turn_id)["pending"])
        return fetch(*args, **how)

    model.fetch = looking  # type: ignore[method-assign]
    bench.run(turn_id)

    assert stored[0] == {
        "provider": "scripted",
        "model": "scripted",
        "id": "resp_1",
        "iteration": 1,
        "is_grace": False,
        "key": 0,
        "cut_as": None,
        "cut_message": None,
        "key_label": None,
    }


def test_a_provider_that_answers_at_once_leaves_nothing_pending(bench: Bench) -> None:
    class AtOnce(BackgroundModel):
        def start(self, request: ModelRequest, **how: Any) -> Reply:
            return self.reply(request, **how)

    bench.model = AtOnce(says("Done."))

    turn = bench.run(bench.submit())

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert "model.started" not in bench.events(turn.id)


def test_a_client_that_is_not_set_to_the_background_is_asked_as_ever(bench: Bench) -> None:
    model = script(bench, says("Done."))
    model.is_background = False

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.kept) == (ExitReason.FINAL_ANSWER, {})


def test_another_worker_fetches_what_a_dead_one_has_started(bench: Bench) -> None:
    class Killed(BaseException):
        """The worker dies."""

    def dies(*_: object, **__: object) -> Reply:
        raise Killed

    model = script(bench, asks(("send", "{}")), says("Done."))
    turn_id = bench.submit()
    fetch, model.fetch = model.fetch, dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        bench.run(turn_id)
    model.fetch = fetch  # type: ignore[method-assign]
    bench.kill_owner(turn_id)

    turn = bench.run(turn_id, bench.runtime("worker-2"))

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 2)
    assert bench.view(turn_id).crash_count == 1
    assert bench.row(turn_id)["unknown_attempts"] == 0
    assert [r["error"] for r in records(bench, turn_id)] == [None, None]


def test_a_long_pause_between_two_looks_releases_the_worker(bench: Bench) -> None:
    model = script(bench, says("Done."), look_again_s=100.0)
    turn_id = bench.submit()

    turn = bench.run(turn_id)

    row = bench.row(turn_id)
    assert (turn.status, row["waiting_for"], row["worker"]) == (TurnStatus.WAITING, WaitingFor.RETRY, None)
    assert model.looks == []
    bench.end_wait(turn_id)
    assert ride(bench, turn_id) is TurnStatus.COMPLETED
    assert model.calls == 1


def test_a_slice_that_is_over_hands_a_pending_answer_on(bench: Bench) -> None:
    model = script(bench, says("Done."))
    turn_id = bench.submit()

    first = bench.run(turn_id, bench.runtime(slice_=timedelta(0)))
    second = bench.run(turn_id, bench.runtime("worker-2"))

    assert (first.status, second.exit_reason) == (TurnStatus.QUEUED, ExitReason.FINAL_ANSWER)
    assert model.calls == 1


def test_words_that_arrive_while_an_answer_is_pending_follow_it(bench: Bench) -> None:
    model = script(bench, asks(("look", "{}")), says("Done."))
    turn_id = left_pending(bench)
    inbox.steer(bench.database, turn_id, "in metric units")
    bench.end_wait(turn_id)

    assert ride(bench, turn_id) is TurnStatus.COMPLETED

    roles = [m.role for m in bench.messages(turn_id)]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER, Role.ASSISTANT]
    assert model.calls == 2


# --- answers that never come, looks that fail


def test_an_answer_that_is_lost_is_a_failed_attempt_and_is_asked_for_anew(bench: Bench) -> None:
    model = script(bench, says("Done."), fates=[LOST])

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 2)
    assert [r["error"] for r in records(bench, turn.id)] == ["server_error", None]
    assert model.interrupted == [], "what is lost needs no telling"


def test_answers_that_are_lost_again_and_again_end_the_turn_after_its_attempts(bench: Bench) -> None:
    model = script(bench, says("Done."), fates=[LOST] * 9)

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.calls) == (ExitReason.PROVIDER_FAILED, 3)


def test_an_answer_that_is_lost_goes_to_the_fallback_when_its_attempts_are_used(bench: Bench) -> None:
    model = script(bench, says("Done."), fates=[LOST] * 3)

    turn = bench.run(bench.submit(fallbacks=("other:small",)))

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 4)
    assert model.requests[-1].model == "small"


@pytest.mark.parametrize("error", [ErrorClass.SERVER_ERROR, ErrorClass.AUTH, ErrorClass.CONNECT, ErrorClass.RATE_LIMIT])
def test_a_look_that_fails_is_made_again_and_buys_nothing(bench: Bench, error: ErrorClass) -> None:
    model = script(bench, says("Done."), look_faults=[ModelError(error, "no"), ModelError(error, "no")])

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 1)
    assert bench.events(turn.id).count("model.look_failed") == 2
    assert [r["error"] for r in records(bench, turn.id)] == [None]
    assert turn.counters.remedies == {}


def test_a_look_that_is_refused_for_its_key_has_the_key_fetched_anew(bench: Bench) -> None:
    class Keys:
        refreshed: ClassVar[list[int]] = []

        def order(self, _turn_id: UUID) -> list[int]:
            return [0]

        def name(self, number: int) -> str:
            return str(number)

        def label(self, number: int) -> str:
            return f"key {number + 1}"

        def prepare(self, number: int, stop: StopSignal) -> None: ...

        def refresh(self, number: int, *, used_at: float) -> bool:
            assert used_at
            self.refreshed.append(number)
            return True

    model = script(bench, says("Done."), look_faults=[ModelError(ErrorClass.AUTH, "401", status=401)])
    model.keys = Keys()  # type: ignore[attr-defined]

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.calls, Keys.refreshed) == (ExitReason.FINAL_ANSWER, 1, [0])


def test_looks_that_fail_are_counted_in_a_row(bench: Bench) -> None:
    faults = [*[SERVER_ERROR] * (MOST_FAILED_LOOKS - 1), None] * 2
    model = script(bench, says("Done."), look_faults=faults)

    turn = bench.run(bench.submit(retry_base_s=0.0))

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 1)


def test_looks_that_fail_too_often_in_a_row_give_the_answer_up_whoever_looks(bench: Bench) -> None:
    model = script(bench, says("Done."), look_faults=[SERVER_ERROR] * MOST_FAILED_LOOKS)
    turn_id = bench.submit(retry_base_s=0.001, retry_in_place_s=0.0)  # every pause is a wait: another owner each time

    assert ride(bench, turn_id) is TurnStatus.COMPLETED

    assert (model.calls, model.interrupted) == (2, ["resp_1"])
    [failed, answered] = records(bench, turn_id)
    assert (failed["error"], answered["error"]) == ("server_error", None)
    assert failed["estimated_tokens"], "it may have been made and billed all the same"
    assert bench.events(turn_id).count("model.look_failed") == MOST_FAILED_LOOKS - 1


def test_an_answer_that_takes_longer_than_a_call_may_is_given_up(bench: Bench) -> None:
    model = script(bench, says("Done."), at_work=FOR_EVER)
    turn_id = left_pending(bench, attempts=1, call_s=60)
    make_older(bench, turn_id, 61)
    bench.end_wait(turn_id)

    turn = bench.run(turn_id)

    assert (turn.exit_reason, model.interrupted) == (ExitReason.PROVIDER_FAILED, ["resp_1"])
    [record] = records(bench, turn_id)
    assert record["error"] == "call_timeout"
    assert record["latency_s"] > 60
    assert record["estimated_tokens"]


def test_an_answer_that_was_ready_when_nobody_looked_is_taken_however_old_it_is(bench: Bench) -> None:
    model = script(bench, says("Done."), at_work=0)
    turn_id = left_pending(bench, call_s=60)
    make_older(bench, turn_id, 3_600)
    bench.end_wait(turn_id)

    turn = bench.run(turn_id)

    assert (turn.exit_reason, model.calls, model.interrupted) == (ExitReason.FINAL_ANSWER, 1, [])


def test_a_reply_that_is_no_answer_is_a_failed_attempt(bench: Bench) -> None:
    model = script(bench, lambda _request, _stop: says("") if len(model.requests) == 1 else says("Done."))

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 2)
    assert [r["error"] for r in records(bench, turn.id)] == ["empty", None]


def test_a_start_that_fails_leaves_nothing_pending(bench: Bench) -> None:
    model = script(bench, says("Done."), faults=[SERVER_ERROR])

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.calls, list(model.kept)) == (ExitReason.FINAL_ANSWER, 2, ["resp_1"])


def test_a_worker_without_the_provider_leaves_the_answer_to_another(bench: Bench) -> None:
    def lacks(_provider: str) -> BackgroundModel:
        raise ConfigError("No provider 'scripted' is configured here")

    model = script(bench, says("Done."))
    turn_id = left_pending(bench)
    bench.end_wait(turn_id)

    first = bench.run(turn_id, bench.runtime("worker-2", models=lacks))
    bench.end_wait(turn_id)

    assert first.status is TurnStatus.WAITING
    assert ride(bench, turn_id) is TurnStatus.COMPLETED
    assert model.calls == 1


# --- stops


def interrupted_while_pending(bench: Bench, runtime: Runtime | None = None) -> UUID:
    """A turn that is interrupted as soon as it has looked once."""
    runtime = runtime or bench.runtime()
    turn_id = bench.submit()
    ended = bench.start(turn_id, runtime)
    model = bench.model
    assert isinstance(model, BackgroundModel)
    wait_until(lambda: bool(model.looks))
    bench.interrupt(turn_id, runtime)
    assert ended().exit_reason is ExitReason.INTERRUPTED_BY_USER
    return turn_id


def test_an_interrupt_ends_the_turn_and_the_answer_at_the_provider(bench: Bench) -> None:
    model = script(bench, says("Done."), at_work=FOR_EVER)

    turn_id = interrupted_while_pending(bench)

    assert (model.calls, model.interrupted) == (1, ["resp_1"])
    [record] = records(bench, turn_id)
    assert (record["error"], record["iteration"]) == ("interrupted", 1)
    assert record["estimated_tokens"], "nobody told what it came to"
    assert bench.row(turn_id)["unknown_attempts"] == 1
    assert bench.row(turn_id)["pending"] is None
    assert bench.events(turn_id)[-1] == "turn.ended"


def test_an_answer_that_was_finished_when_it_was_given_up_is_booked_at_what_it_cost(bench: Bench) -> None:
    script(bench, says("Done."), at_work=FOR_EVER, told=Usage(10, 7))

    turn_id = interrupted_while_pending(bench)

    view = bench.view(turn_id)
    assert (view.usage, view.spending.unknown_attempts) == (Usage(10, 7), 0)
    assert view.spending.cost_usd is not None


def test_a_provider_that_cannot_be_told_is_an_event_and_not_an_ending(bench: Bench) -> None:
    script(bench, says("Done."), at_work=FOR_EVER, told=ModelError(ErrorClass.TIMEOUT, "no answer"))

    turn_id = interrupted_while_pending(bench)

    assert bench.events(turn_id)[-2:] == ["model.not_interrupted", "turn.ended"]


def test_a_provider_that_is_slow_to_hear_of_it_does_not_hold_the_ending_up(bench: Bench) -> None:
    class Slow(BackgroundModel):
        may_hear = threading.Event()

        def interrupt(self, started: Started) -> Usage | None:
            assert self.may_hear.wait(20), "it was never told"
            return super().interrupt(started)

    model = bench.model = Slow(says("Done."), at_work=FOR_EVER, told=Usage(10, 7))

    turn_id = interrupted_while_pending(bench)

    assert model.interrupted == [], "the turn has ended before anybody heard of it"
    assert bench.events(turn_id)[-2:] == ["model.not_interrupted", "turn.ended"]
    assert bench.row(turn_id)["unknown_attempts"] == 1
    model.may_hear.set()
    wait_until(lambda: model.interrupted == ["resp_1"])


def test_an_interrupt_waits_for_no_key_that_is_fetched_slowly(bench: Bench, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    slow = f"command:sh -c 'touch {asked}; sleep 60'"
    script(bench, says("Done."), at_work=FOR_EVER)
    turn_id = left_pending(bench)
    settings = ProviderSettings(
        "scripted", Api.OPENAI_RESPONSES, "http://127.0.0.1:9/v1", (slow,), extra_body={"background": True}
    )
    with closing(connect(settings)) as cold:
        bench.interrupt(turn_id)
        began = time.monotonic()
        turn = bench.run(turn_id, bench.runtime("worker-2", models=lambda _: cold))
        took = time.monotonic() - began

    assert (turn.exit_reason, took < 5) == (ExitReason.INTERRUPTED_BY_USER, True)
    assert asked.exists(), "what was waited for is the key"


def test_a_waiting_turn_with_a_pending_answer_is_ended_by_a_worker_that_tells_the_provider(bench: Bench) -> None:
    model = script(bench, says("Done."), at_work=FOR_EVER)
    turn_id = left_pending(bench)

    bench.interrupt(turn_id)
    queued = bench.view(turn_id).status
    turn = bench.run(turn_id)

    assert (queued, turn.exit_reason) == (TurnStatus.QUEUED, ExitReason.INTERRUPTED_BY_USER)
    assert model.interrupted == ["resp_1"]


def test_a_deadline_ends_a_turn_whose_answer_is_pending_and_tells_the_provider(bench: Bench) -> None:
    model = script(bench, says("Done."), at_work=FOR_EVER, look_again_s=0.05)

    turn = bench.run(bench.submit(deadline_s=1.3))

    assert (turn.exit_reason, model.calls, model.interrupted) == (ExitReason.DEADLINE, 1, ["resp_1"])


def test_a_fault_of_ours_ends_the_answer_at_the_provider_too(bench: Bench) -> None:
    def breaks(*_: object, **__: object) -> Reply:
        raise ZeroDivisionError

    model = script(bench, says("Done."))
    model.fetch = breaks  # type: ignore[method-assign]

    turn = bench.run(bench.submit())

    assert (turn.exit_reason, model.interrupted) == (ExitReason.INTERNAL_ERROR, ["resp_1"])
    assert bench.row(turn.id)["unknown_attempts"] == 1


def test_a_turn_that_is_resumed_asks_anew(bench: Bench) -> None:
    model = script(bench, says("Done."), at_work=FOR_EVER)
    turn_id = interrupted_while_pending(bench)
    model.at_work = 0

    resumption.resume(bench.database, turn_id, notice="Go on.")
    turn = run_turn(turn_id, bench.runtime("worker-2"))

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 2)


# --- money and budget


def test_caps_are_checked_before_the_start_and_not_at_the_looks(bench: Bench) -> None:
    whole = Reply(says("Done.").content, says("").finish, Usage(100, 4_000), "scripted")
    model = script(bench, whole)

    turn = bench.run(bench.submit(max_tokens_total=4_000, max_output_tokens=1_000))

    assert (turn.exit_reason, model.calls) == (ExitReason.FINAL_ANSWER, 1)


def test_an_answer_that_the_caps_cut_ends_the_turn_by_the_cap_whoever_fetches_it(bench: Bench) -> None:
    model = script(bench, says("The sum is", finish=Finish.LENGTH))
    turn_id = left_pending(bench, max_tokens_total=3_000)
    bench.end_wait(turn_id)

    assert ride(bench, turn_id) is TurnStatus.INCOMPLETE

    view = bench.view(turn_id)
    assert (view.exit_reason, view.output_text, model.calls) == (ExitReason.TOKEN_CAP, "The sum is", 1)
    assert "resume the turn" in (view.message or "")


def test_a_grace_call_in_the_background_is_still_one(bench: Bench) -> None:
    model = script(bench, asks(("look", "{}")), says("partial summary"))
    turn_id = bench.submit(iterations=1, retry_in_place_s=0.0)

    assert ride(bench, turn_id) is TurnStatus.INCOMPLETE

    assert bench.view(turn_id).output_text == "partial summary"
    assert [r.may_call_tools for r in model.requests] == [True, False]


def test_a_stop_before_the_start_buys_nothing(bench: Bench) -> None:
    def stopped(_request: ModelRequest, _stop: StopSignal) -> Reply:
        raise AssertionError("nothing is asked")

    model = script(bench, stopped)
    turn_id = bench.submit()
    bench.interrupt(turn_id)

    assert (bench.view(turn_id).status, model.calls) == (TurnStatus.INTERRUPTED, 0)


def test_a_pending_answer_that_an_older_worker_passed_over_is_none(bench: Bench) -> None:
    model = script(bench, asks(("look", "{}")), says("Done."))
    turn_id = left_pending(bench)
    bench.database.rows(
        """UPDATE turns SET pending = '{"provider":"scripted","model":"scripted","id":"resp_0","iteration":7}'
           WHERE id = %(id)s""",
        {"id": turn_id},
    )
    bench.end_wait(turn_id)

    assert ride(bench, turn_id) is TurnStatus.COMPLETED

    assert "resp_0" not in model.looks


def test_a_fault_while_the_provider_is_told_ends_the_turn_all_the_same(bench: Bench) -> None:
    script(bench, says("Done."), at_work=FOR_EVER, told=RuntimeError("a fault of ours"))
    turn_id = left_pending(bench)

    interrupts.stamp(bench.database, turn_id)
    bench.end_wait(turn_id)

    assert bench.run(turn_id).exit_reason is ExitReason.INTERRUPTED_BY_USER
    assert "model.not_interrupted" in bench.events(turn_id)
    assert bench.row(turn_id)["unknown_attempts"] == 1


def test_a_provider_that_wants_to_be_asked_often_holds_no_worker_for_hours(bench: Bench) -> None:
    script(bench, says("Done."), at_work=FOR_EVER)
    turn_id = left_pending(bench, call_s=86_400.0)
    make_older(bench, turn_id, 3_600)
    bench.end_wait(turn_id)

    assert bench.run(turn_id).status is TurnStatus.WAITING
