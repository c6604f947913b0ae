"""The steps that ask a model: for the next iteration, for an answer that was started before, for a summary."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial

from orchestration import answers, background, compression, ownership, repairs
from orchestration.asking import Question, ask
from orchestration.carrying import Carried
from orchestration.endings import end
from orchestration.errors import ConfigError, UnknownTool
from orchestration.live import UNHEARD, Activity, Mark
from orchestration.ports import BackgroundClient, Delta, ModelRequest, OnText, Reply, TimeLimits, ToolSpec
from orchestration.prompts import prompt_cache_key, system_prompt
from orchestration.runtime import Runtime
from orchestration.steps import CallModel, Compress, GiveUpWorker
from orchestration.thinking import sent_messages
from persistence.records.outcome import Ending, Outcome
from persistence.records.turn import Turn


def call(step: CallModel, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    provider, _, model = step.model.partition(":")
    agent = turn.agent
    try:
        client = runtime.models(provider)
        specs = runtime.toolbox.specs(agent.tools)
    except (ConfigError, UnknownTool) as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    request = ModelRequest(
        model=model,
        system=system_prompt(turn, model),
        messages=sent_messages(turn, model),
        tools=specs,
        may_call_tools=not step.is_grace or agent.grace == "tools",
        output_schema=agent.output_schema,
        max_output_tokens=repairs.output_tokens(turn),
        limits=TimeLimits.of(agent),
        cache_key=prompt_cache_key(turn.session_id),
        call_id_chars=repairs.call_id_chars(turn),
    )
    attempt = answers.Attempt(turn, provider, model, step.is_grace)
    answered = partial(_answered, attempt, specs, runtime)
    started_by = background.client_of(client)
    with _heard(attempt, carried, runtime) as heard:
        question = Question(client, request, attempt, answered, heard, is_last=step.is_last, background=started_by)
        return ask(question, carried, runtime)


def fetch(turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    pending = turn.counters.pending
    assert pending is not None
    try:
        client = runtime.models(pending.provider)
        specs = runtime.toolbox.specs(turn.agent.tools)
        if not isinstance(client, BackgroundClient):
            raise ConfigError(f"The provider {pending.provider!r} has an answer of this turn, and is another one here.")
    except (ConfigError, UnknownTool) as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    attempt = answers.Attempt(turn, pending.provider, pending.model, pending.is_grace)
    answered = partial(_answered, attempt, specs, runtime)
    ownership.prove(carried, runtime)
    with _heard(attempt, carried, runtime) as heard:
        found = background.fetch(
            background.Look(client, pending, attempt, answered, heard, TimeLimits.of(turn.agent)), carried
        )
    match found:
        case Outcome():
            return found
        case GiveUpWorker():
            return answers.waits(turn, found)
        case Ending():
            return end(turn, found)


@contextmanager
def _heard(attempt: answers.Attempt, carried: Carried, runtime: Runtime) -> Generator[OnText]:
    """Where the words of an attempt go as they come."""
    turn = attempt.turn
    model = f"{attempt.provider}:{attempt.model}"
    tried = turn.counters.attempts + 1
    words = runtime.live.words(Mark(turn.id, turn.fencing_token, turn.position, attempt.iteration, tried, model))

    def heard(delta: Delta) -> None:
        carried.activity = Activity.STREAMING
        words(delta)

    try:
        yield heard
    finally:
        words.end()


def _answered(
    attempt: answers.Attempt, specs: Sequence[ToolSpec], runtime: Runtime, reply: Reply, latency_s: float
) -> Outcome:
    turn = attempt.turn
    check = partial(runtime.toolbox.check, turn.agent.tools)
    return attempt.answered(reply, latency_s, {s.name: s for s in specs}, check)


def compress(step: Compress, turn: Turn, carried: Carried, runtime: Runtime) -> Outcome:
    provider, _, model = step.model.partition(":")
    try:
        client = runtime.models(provider)
    except ConfigError as error:
        return answers.unfit_worker(turn, runtime.worker, str(error))
    runtime.is_now(Activity.COMPRESSING, carried)
    attempt = compression.Attempt(turn, step, provider, model)
    request = attempt.request(TimeLimits.of(turn.agent))
    return ask(Question(client, request, attempt, attempt.answered, UNHEARD), carried, runtime)
