"""What is changed in the requests of a turn because its model refused one, and for how long that holds. Pure.

All of it is kept in `counters.remedies`, so that it holds over a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestration.costs import USUAL_OUTPUT_TOKENS
from orchestration.errors import ErrorClass, ModelError
from orchestration.remedies import REMEDIES
from orchestration.steps import Repair, RepairRequest
from orchestration.thinking import EVERY_MESSAGE, has_thinking
from persistence.records.outcome import Counters
from persistence.records.turn import (
    CALL_ID_CHARS,
    LEARNED,
    OUTPUT_LIMIT,
    SUMMARY_OUTPUT_LIMIT,
    THINKING_REFUSED_UP_TO,
    Turn,
)

# How long an answer any model gives, where one refused more and did not say how much it would take.
EVERY_MODELS_OUTPUT_TOKENS = 4_096

# The length of the ids of calls that some servers insist on: none but Mistral's do.
MISTRALS_CALL_ID_CHARS = 9

# The names of what is kept beside what a model was found to refuse: the most tokens that a refusal said it would let an
# answer have, and the repairs since the newest answer.
_SAID = "output_limit_said"
_REPAIRED = {repair: f"repaired_{repair}" for repair in Repair}
_KEPT_AS = {Repair.OUTPUT_CAP: OUTPUT_LIMIT, Repair.THINKING: THINKING_REFUSED_UP_TO, Repair.CALL_IDS: CALL_ID_CHARS}


def repair(turn: Turn, error: ErrorClass) -> RepairRequest | None:
    """The repair of a request that was refused with `error`, None where there is none or it was tried since the last answer."""
    remedies = turn.counters.remedies
    match REMEDIES[error].repair:
        case None:
            return None
        case kind if remedies.get(_REPAIRED[kind]):
            return None
        case Repair.OUTPUT_CAP:
            asked = output_tokens(turn) or USUAL_OUTPUT_TOKENS
            limit = remedies.get(_SAID, EVERY_MODELS_OUTPUT_TOKENS)
            return RepairRequest(Repair.OUTPUT_CAP, limit) if 0 < limit < asked else None
        case Repair.CALL_IDS:
            has_calls = any(message.calls for message in turn.messages)
            return (
                RepairRequest(Repair.CALL_IDS, MISTRALS_CALL_ID_CHARS)
                if has_calls and not remedies.get(CALL_ID_CHARS)
                else None
            )
        case Repair.THINKING:
            refused = remedies.get(THINKING_REFUSED_UP_TO, 0)
            sent = [m.seq for m in turn.messages if m.seq > refused and has_thinking(m)]
            if not sent:
                return None
            # Refused again, although it was new: this server takes none back, and to find that out for each answer would
            # double the requests of the turn.
            return RepairRequest(Repair.THINKING, EVERY_MESSAGE if refused else max(sent))


def repaired(counters: Counters, step: RepairRequest) -> Counters:
    """The counters of a turn whose refused request is tried anew with this repair."""
    kept = {_REPAIRED[step.repair]: 1, _KEPT_AS[step.repair]: step.value}
    anew = replace(counters, attempts=0, last_error=None, retry_after_s=None)
    return anew.with_remedies({**_without(counters.remedies, _SAID), **kept})


def noted(counters: Counters, error: ModelError) -> Counters:
    """The counters with what a refusal said of the length of an answer."""
    kept = _without(counters.remedies, _SAID)
    return counters.with_remedies(kept if error.output_limit is None else {**kept, _SAID: error.output_limit})


def answered(remedies: Mapping[str, int]) -> dict[str, int]:
    """The counters once the model has answered: each repair may be tried anew, and what it did stays."""
    return _without(remedies, *_REPAIRED.values(), _SAID)


def of_next_model(remedies: Mapping[str, int]) -> dict[str, int]:
    """The counters once another model is asked: it has limits and a taste of its own."""
    return _without(answered(remedies), *LEARNED)


def output_tokens(turn: Turn) -> int | None:
    """How long an answer the model in use is asked for at most, None where that is left to the adapter."""
    return shorter(turn.agent.max_output_tokens, turn.counters.remedies.get(OUTPUT_LIMIT))


def call_id_chars(turn: Turn) -> int | None:
    """How long the ids of calls have to be for the model in use, None where nothing is known of that."""
    return turn.counters.remedies.get(CALL_ID_CHARS)


def summary_tokens(turn: Turn) -> int | None:
    """The same for the model that summarises."""
    limits = turn.counters.remedies
    own = limits.get(OUTPUT_LIMIT) if turn.agent.compress_model is None else None
    return shorter(turn.agent.max_output_tokens, shorter(own, limits.get(SUMMARY_OUTPUT_LIMIT)))


def shorter_summary(turn: Turn, error: ModelError) -> Counters | None:
    """The counters with which a summary is asked for anew after this refusal, None where that is no use."""
    if error.error is not ErrorClass.OUTPUT_CAP:
        return None
    asked = summary_tokens(turn) or USUAL_OUTPUT_TOKENS
    limit = error.output_limit or EVERY_MODELS_OUTPUT_TOKENS
    return (
        turn.counters.with_remedies({**turn.counters.remedies, SUMMARY_OUTPUT_LIMIT: limit}) if limit < asked else None
    )


def shorter(one: int | None, other: int | None) -> int | None:
    """The shorter of two lengths, of which None is no limit."""
    return min((n for n in (one, other) if n is not None), default=None)


def _without(remedies: Mapping[str, int], *names: str) -> dict[str, int]:
    return {name: n for name, n in remedies.items() if name not in names}
