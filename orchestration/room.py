"""Whether the next request has room, and the step that makes some: when, how often, and what if it cannot. Pure.

Every bound is kept in `counters.remedies`, so that it holds over a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import takewhile

from orchestration.context_size import BYTES_PER_TOKEN, Size, rough_text, size_of
from orchestration.context_window import Limits, Plan, Why, new_messages, output_room, plan, plan_rest
from orchestration.errors import ErrorClass
from orchestration.remedies import REMEDIES, wait_s
from orchestration.steps import Backoff, Compress, GiveUpWorker, ShowLess, Step
from orchestration.transcript import Style, line
from persistence.records.compression import SHOWN_CHARS, SHOWN_FROM
from persistence.records.message import Result, Role
from persistence.records.outcome import Counters, Ending
from persistence.records.status import ExitReason, WaitingFor
from persistence.records.turn import Turn

# What a pass may be divided into, where the model that summarises has a small window.
_PIECES = 32
# A summary may fail this often beyond the attempts of any other call: without it the turn may have to end.
_MORE_ATTEMPTS = 2
# The words of ours in a request for a summary, and the least of a history that is worth one.
_PROMPT_TOKENS, _LEAST_ROOM = 700, 400
# What of a window several results may fill together, and the least of one that is any use.
_RESULTS_SHARE, _LEAST_RESULT_BYTES = 0.5, 1_000

TOO_LARGE = (ErrorClass.CONTEXT_OVERFLOW, ErrorClass.PAYLOAD_TOO_LARGE)
# How long a message is in the transcript that is summarised.
MEASURED = Style()


class Count(StrEnum):
    """What is counted of a turn's compressions, by its name among the remedies."""

    SUMMARIES = "summaries"  # in the whole turn
    PASSES = "summary_passes"  # since the newest answer
    PIECES = "summary_pieces"  # of the pass that is not done
    TARGET = "summary_target"  # the message that it goes to
    ATTEMPTS = "summary_attempts"  # that failed, of the summary that is being asked for
    PAUSE = "summary_pause"  # 1 while a pause is due before the next of them
    CUTS = "summary_cuts"  # halvings of what one summary is made from, since the newest answer
    GIVEN_UP = "summary_given_up"  # 1 from the last attempt to the next answer
    FAILURES = "summary_failures"  # summaries given up in a row
    NOT_BEFORE = "summary_not_before"  # the iterations used before which none is tried again without need


def was_refused(turn: Turn) -> bool:
    """Whether the newest attempt failed because its request was too large."""
    return turn.counters.last_error in TOO_LARGE


def before_call(turn: Turn, model: str) -> Step | Why | None:
    """What has to happen before `model` is called, or why it makes no sense to call it.

    None when the request has room, or as much as can be made: an estimate alone ends no turn.
    """
    counters, limits = turn.counters, Limits.of(turn.agent)
    if limits is None and Count.TARGET not in counters.remedies:
        return None
    size = size_of(turn)
    unfinished = _unfinished(turn, limits, size)
    if unfinished is not None:
        return _compress(turn, model, unfinished, size)
    if limits is None or size.tokens < limits.threshold:
        return None
    if counters.remedies.get(Count.GIVEN_UP):
        return Why.NO_SUMMARY if size.tokens > limits.window else None
    is_tight = size.tokens > limits.most
    is_early = counters.iterations_used < counters.remedies.get(Count.NOT_BEFORE, 0)
    if _is_too_often(turn) or (is_early and not is_tight):
        return None
    found = plan(turn, limits=limits, size=size)
    if is_tight and (isinstance(found, Why) or size.tokens - found.gain > limits.most):
        found = _better(found, plan(turn, limits=limits, size=size, is_last_resort=True))
    if isinstance(found, Why) or (found.gain < limits.worth and not is_tight):
        return None
    return _compress(turn, model, found, size)


def after_refusal(turn: Turn, model: str) -> Step | Why:
    """What can be done about a request that the provider found too large, or why nothing can."""
    counters = turn.counters
    if counters.remedies.get(Count.GIVEN_UP):
        return Why.NO_SUMMARY
    if _is_too_often(turn):
        return _show_less(turn) or (Why.TOO_OFTEN if turn.agent.compress_passes else Why.NEVER)
    size = size_of(turn)
    # What was refused is above the window, whatever the configuration says of it.
    window = min(turn.agent.context_window or size.tokens, size.tokens)
    limits = Limits(window, most=window * 3 // 4, threshold=window // 2)
    found = plan(turn, limits=limits, size=size)
    if counters.remedies.get(Count.PASSES) or isinstance(found, Why) or found.gain < limits.worth:
        found = _better(found, plan(turn, limits=limits, size=size, is_last_resort=True))
    return _show_less(turn) or found if isinstance(found, Why) else _compress(turn, model, found, size)


def cannot_go_on(turn: Turn, why: Why) -> Ending:
    """The ending of a turn whose request is too large, and stays so."""
    refusal = f" The model's answer to it was {turn.counters.last_error}." if was_refused(turn) else ""
    if why is Why.NO_SUMMARY:
        told = "The context is full and a summary of it failed: the events compression.failed say why. Nothing was removed."
        return Ending(ExitReason.COMPRESSION_FAILED, message=told + refusal)
    told = f"The context cannot be reduced to what the model takes: {why}."
    return Ending(ExitReason.CONTEXT_OVERFLOW, message=told + refusal)


def result_chars(turn: Turn) -> int:
    """The most characters of one result of the open calls."""
    return min(turn.agent.result_chars, result_bytes(turn) or turn.agent.result_chars)


def result_bytes(turn: Turn) -> int | None:
    """The most bytes of one result of the open calls, None where no window is known.

    All of them have to fit the window together, for none is ever removed before the model has seen it.
    """
    limits = Limits.of(turn.agent)
    if limits is None:
        return None
    share = int(limits.most * _RESULTS_SHARE / max(len(turn.calls), 1) / size_of(turn).growth)
    return max(share * BYTES_PER_TOKEN, _LEAST_RESULT_BYTES)


def answered(remedies: Mapping[str, int]) -> dict[str, int]:
    """The counters once the model has answered: what is counted between two answers begins anew."""
    between = {Count.PASSES, Count.PIECES, Count.TARGET, Count.ATTEMPTS, Count.PAUSE, Count.CUTS, Count.GIVEN_UP}
    return {name: n for name, n in remedies.items() if name not in between}


def rested(counters: Counters) -> Counters:
    """The counters once the pause before a summary has been sat out without a worker."""
    return counted(counters, PAUSE=0)


def compressed(counters: Counters, *, to_seq: int, target_seq: int) -> Counters:
    """The counters after a compression; it ends its pass if it got to the target, or in too many pieces."""
    remedies = counters.remedies
    pieces = remedies.get(Count.PIECES, 0) + 1
    is_done = to_seq >= target_seq or pieces >= _PIECES
    return counted(
        replace(
            counters,
            attempts=0,
            last_error=None,
            retry_after_s=None,
            crash_streak=counters.crash_streak if counters.is_suspect else 0,
        ),
        SUMMARIES=remedies.get(Count.SUMMARIES, 0) + is_done,
        PASSES=remedies.get(Count.PASSES, 0) + is_done,
        PIECES=0 if is_done else pieces,
        TARGET=0 if is_done else target_seq,
        ATTEMPTS=0,
        PAUSE=0,
        FAILURES=0,
        NOT_BEFORE=0,
    )


def showing_less(counters: Counters, step: ShowLess) -> Counters:
    """The counters of a turn whose refused request is tried anew with shorter results."""
    remedies = {**counters.remedies, SHOWN_FROM: step.from_seq, SHOWN_CHARS: step.chars}
    anew = replace(counters, attempts=0, last_error=None, retry_after_s=None)
    return anew.with_remedies(remedies)


def failed(counters: Counters, error: ErrorClass | None, *, attempts: int, retry_after_s: float | None) -> Counters:
    """The counters after an attempt without a summary (without an error: one that was no shorter).

    The last attempt gives it up: what was compressed before stays.
    """
    remedies = counters.remedies
    tried = remedies.get(Count.ATTEMPTS, 0) + 1
    can_help = error is None or error in TOO_LARGE or REMEDIES[error].retries
    if can_help and tried < attempts + _MORE_ATTEMPTS:
        cuts = remedies.get(Count.CUTS, 0) + (error in TOO_LARGE)
        return counted(replace(counters, retry_after_s=retry_after_s), ATTEMPTS=tried, PAUSE=1, CUTS=cuts)
    failures = remedies.get(Count.FAILURES, 0) + 1
    return counted(
        counters,
        ATTEMPTS=0,
        PAUSE=0,
        PIECES=0,
        TARGET=0,
        GIVEN_UP=1,
        FAILURES=failures,
        NOT_BEFORE=counters.iterations_used + 2 ** min(failures, 10),
    )


def counted(counters: Counters, **counts: int) -> Counters:
    """`counters` with these of `Count` as given; what is 0 is not kept."""
    remedies = dict(counters.remedies) | {Count[name].value: n for name, n in counts.items()}
    return counters.with_remedies(remedies)


def _is_too_often(turn: Turn) -> bool:
    """Whether there were as many compressions as may be between two answers; over the turn, each answer allows one more."""
    counters = turn.counters
    of_turn = counters.remedies.get(Count.SUMMARIES, 0) - counters.iterations_used
    return max(counters.remedies.get(Count.PASSES, 0), of_turn) >= turn.agent.compress_passes


def _show_less(turn: Turn) -> ShowLess | None:
    """A quarter of the longest result that the model has not seen, if that is still any use."""
    unseen = list(takewhile(lambda m: m.role is not Role.ASSISTANT, reversed(turn.messages)))
    longest = max((len(b.content) for m in unseen for b in m.content if isinstance(b, Result)), default=0)
    if longest < 4 * _LEAST_RESULT_BYTES:
        return None
    return ShowLess(min(turn.counters.remedies.get(SHOWN_FROM, unseen[-1].seq), unseen[-1].seq), longest // 4)


def _better(one: Plan | Why, other: Plan | Why) -> Plan | Why:
    if isinstance(one, Why) or isinstance(other, Why):
        return other if isinstance(one, Why) else one
    return max(one, other, key=lambda p: p.gain)


def _unfinished(turn: Turn, limits: Limits | None, size: Size) -> Plan | None:
    """What is left of a pass that is carried out in pieces."""
    target = turn.counters.remedies.get(Count.TARGET, 0)
    if turn.compression is None or target <= turn.compression.to_seq:
        return None
    found = plan_rest(turn, target, limits=limits or Limits.within(size.tokens, turn.agent), size=size)
    return None if isinstance(found, Why) else found


def _compress(turn: Turn, model: str, found: Plan, size: Size) -> Step:
    """The next attempt at a summary, or the pause before it."""
    counters, agent = turn.counters, turn.agent
    if counters.remedies.get(Count.PAUSE) and not turn.has_rested:
        tried = counters.remedies.get(Count.ATTEMPTS, 0)
        pause = wait_s(turn.id, tried, base_s=agent.retry_base_s, retry_after_s=counters.retry_after_s)
        return Backoff(pause) if pause <= agent.retry_in_place_s else GiveUpWorker(WaitingFor.RETRY, pause)
    room = _room(turn, model, size)
    return Compress(
        agent.compress_model or model,
        from_seq=found.from_seq,
        to_seq=_piece(turn, found, room),
        target_seq=found.to_seq,
        summary_tokens=found.summary_tokens,
        room=room,
    )


def _room(turn: Turn, model: str, size: Size) -> int:
    """What of the history the model that summarises can be shown at once, in rough tokens."""
    agent = turn.agent
    window = agent.compress_window or agent.context_window or size.tokens
    if agent.compress_model in (None, model) and turn.counters.last_error in TOO_LARGE:
        window = min(window, size.tokens)
    before = rough_text(turn.compression.summary) if turn.compression else 0
    free = (window - output_room(window, agent.max_output_tokens) - _PROMPT_TOKENS) / size.growth - before
    return max(int(free) >> turn.counters.remedies.get(Count.CUTS, 0), _LEAST_ROOM)


def _piece(turn: Turn, found: Plan, room: int) -> int:
    """Up to where one summary goes: as many groups of a call and its results as there is room for, one at least."""
    messages = new_messages(turn, found.from_seq, found.to_seq)
    used, end = 0, None
    for message, following in zip(messages, (*messages[1:], None), strict=True):
        used += rough_text(line(message, MEASURED))
        if used > room and end is not None:
            break
        if following is None or following.role is not Role.TOOL:
            end = message.seq
    assert end is not None, "a plan has something new in it"
    # What a summary stands for already stays behind it.
    return max(end, turn.compression.to_seq if turn.compression else 0)
