"""The next model of the chain, after one that cannot answer."""

from __future__ import annotations

import pytest

from orchestration.errors import ErrorClass, ModelError
from persistence.records.status import ExitReason
from tests.support.scripted_model import Scripted, ScriptedModel, asks, says
from tests.support.workbench import Bench

CHAIN: dict[str, object] = {"model": "primary:large", "fallbacks": ("second:medium", "third:small")}


class Chain:
    """One scripted model for each provider of the agent's chain."""

    def __init__(self, **models: ScriptedModel) -> None:
        self.models = models

    def __call__(self, provider: str) -> ScriptedModel:
        return self.models[provider]


def error(kind: ErrorClass, **more: float) -> ModelError:
    return ModelError(kind, kind.value, **more)  # type: ignore[arg-type]


def carry(bench: Bench, chain: Chain, **settings: object) -> ExitReason | None:
    turn_id = bench.submit(**(CHAIN | settings))
    return bench.run(turn_id, bench.runtime(models=chain)).exit_reason


def chain(primary: Scripted, *, second: Scripted | None = None, third: Scripted | None = None) -> Chain:
    return Chain(
        primary=ScriptedModel(primary),
        second=ScriptedModel(second or says("From the second.")),
        third=ScriptedModel(third or says("From the third.")),
    )


@pytest.mark.parametrize(
    ("kind", "attempts"),
    [
        (ErrorClass.AUTH, 1),
        (ErrorClass.BILLING, 1),
        (ErrorClass.MODEL_NOT_FOUND, 1),
        (ErrorClass.REFUSAL, 1),
        (ErrorClass.OVERLOADED, 2),
        (ErrorClass.UPSTREAM_RATE_LIMIT, 2),
        (ErrorClass.TIMEOUT, 2),
        (ErrorClass.CONNECT_TIMEOUT, 2),
        (ErrorClass.FIRST_TOKEN_TIMEOUT, 2),
        (ErrorClass.IDLE_TIMEOUT, 3),
        (ErrorClass.CALL_TIMEOUT, 1),
        (ErrorClass.SERVER_ERROR, 3),
        (ErrorClass.EMPTY, 3),
        (ErrorClass.RATE_LIMIT, 3),
    ],
)
def test_a_model_that_cannot_answer_hands_over_after_as_many_attempts_as_may_help(
    bench: Bench, kind: ErrorClass, attempts: int
) -> None:
    models = chain(error(kind))

    assert carry(bench, models) is ExitReason.FINAL_ANSWER

    turn_id = bench.turn_ids[-1]
    assert [models.models[n].calls for n in ("primary", "second", "third")] == [attempts, 1, 0]
    assert bench.view(turn_id).output_text == "From the second."
    assert bench.events(turn_id).count("model.fallback") == 1


def test_a_provider_that_asks_for_a_long_wait_is_left_for_the_fallback(bench: Bench) -> None:
    models = chain(error(ErrorClass.RATE_LIMIT, retry_after_s=120.0))

    assert carry(bench, models) is ExitReason.FINAL_ANSWER

    assert models.models["primary"].calls == 1


def test_the_turn_stays_with_its_fallback_and_the_next_turn_begins_with_the_primary(bench: Bench) -> None:
    second = ScriptedModel(asks(("send", "{}")), says("Done."))
    models = Chain(primary=ScriptedModel(error(ErrorClass.AUTH)), second=second, third=ScriptedModel(says("no")))

    assert carry(bench, models) is ExitReason.FINAL_ANSWER
    assert (models.models["primary"].calls, second.calls) == (1, 2)
    carry(bench, models)

    assert models.models["primary"].calls == 2


def test_the_system_prompt_stays_and_a_line_after_it_names_who_stands_in(bench: Bench) -> None:
    models = chain(error(ErrorClass.AUTH))

    carry(bench, models, system_prompt="Be brief.")

    assert models.models["primary"].requests[0].system == "Be brief."
    assert models.models["second"].requests[0].system.startswith("Be brief.\n\n")
    assert "medium" in models.models["second"].requests[0].system


def test_an_exhausted_chain_fails_with_the_last_error_and_says_that_it_was_the_last(bench: Bench) -> None:
    models = chain(error(ErrorClass.AUTH), second=error(ErrorClass.BILLING), third=error(ErrorClass.SERVER_ERROR))

    assert carry(bench, models) is ExitReason.PROVIDER_FAILED

    sentence = bench.view(bench.turn_ids[-1]).message or ""
    assert "third:small" in sentence
    assert "last of the agent's chain" in sentence
    assert [models.models[n].calls for n in ("primary", "second", "third")] == [1, 1, 3]


def test_a_crash_after_the_hand_over_goes_on_with_the_fallback(bench: Bench) -> None:
    class Killed(BaseException):
        """The worker dies."""

    def dies(*_: object) -> object:
        raise Killed

    turn_id = bench.submit(model="primary:large", fallbacks=("second:medium",))
    dying = Chain(primary=ScriptedModel(error(ErrorClass.AUTH)), second=ScriptedModel(dies))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        bench.run(turn_id, bench.runtime(models=dying))
    bench.kill_owner(turn_id)

    models = chain(says("not asked again"))
    turn = bench.run(turn_id, bench.runtime("worker-2", models=models))

    assert turn.exit_reason is ExitReason.FINAL_ANSWER
    assert [models.models[n].calls for n in ("primary", "second")] == [0, 1]
    booked = [r for r in bench.everything(turn_id)["model_calls"] if r["error"] == "outcome_unknown"]
    assert [(r["provider"], r["model"]) for r in booked] == [("second", "medium")]
