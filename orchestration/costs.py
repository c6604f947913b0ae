"""What a model call may come to, before it is made, and what it came to. Pure: the prices are a function that is given.

The caps of a turn are kept by refusing a call that might not fit into them: its request as large as it may be counted,
its answer as long as it may get. Attempts that nobody told the usage of count at an estimate, so that no fault is a way
around a cap.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias

from orchestration.errors import ConfigError, ErrorClass
from orchestration.structured_output import output_text
from persistence.records import parts
from persistence.records.message import Role
from persistence.records.outcome import Ending, Event, Lost, Outcome
from persistence.records.spending import Estimate, Spending
from persistence.records.status import ExitReason
from persistence.records.turn import Turn
from persistence.records.usage import Usage

# (provider, model, usage) -> dollars; None where no price is known.
Prices: TypeAlias = Callable[[str, str, Usage], "Decimal | None"]

# How long an answer is taken to get where the agent does not say it: what the Anthropic adapter lets it get.
USUAL_OUTPUT_TOKENS = 16_384
# Less room than this is no use: the answer would be cut, and its request is paid all the same.
LEAST_OUTPUT_TOKENS = 1_000

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """The length that one answer may have; None leaves it to the agent's settings and the adapter.

    Where the caps made it shorter, `cut` is how the turn ends should the answer not fit.
    """

    max_output_tokens: int | None
    cut: Ending | None = None

    def applied_to(self, outcome: Outcome, turn: Turn) -> Outcome:
        """What the attempt left, with the ending that it has because it was cut at the caps. `turn` is as it was before."""
        call, ending = outcome.model_call, outcome.ending
        if self.cut is None or call is None:
            return outcome
        if call.error is None and outcome.messages and parts.is_cut(outcome.messages[0]):
            # To go on would buy the same request again, for a shorter answer each time.
            whole = parts.answer((*turn.messages, outcome.messages[0]), turn.id)
            told = tuple(event for event in outcome.events if event.type == "model.answered")
            alone = replace(outcome, messages=outcome.messages[:1], events=told)
            return ended_as(alone, replace(self.cut, output_text=whole))
        # The latter: an answer so short that its provider would not even begin.
        if ending is None and call.error in (ErrorClass.TRUNCATED, ErrorClass.FORMAT_ERROR):
            return ended_as(outcome, replace(self.cut, output_text=parts.unfinished(turn.messages, turn.id)))
        return outcome


def ended_as(outcome: Outcome, ending: Ending) -> Outcome:
    """`outcome` of an attempt that leaves no call open, with this ending and no other."""
    told = Event("turn.ended", {"status": ending.exit_reason.status.value, "exit_reason": ending.exit_reason.value})
    events = tuple(e for e in outcome.events if e.type != told.type)
    return replace(outcome, ending=ending, events=(*events, told))


def spent_up(turn: Turn) -> Ending | None:
    """The ending of a turn that has reached a cap, whatever may come."""
    reached: tuple[ExitReason, str] | None = None
    if turn.max_tokens_total is not None and turn.usage.total + turn.spending.estimated_tokens >= turn.max_tokens_total:
        reached = ExitReason.TOKEN_CAP, f"The cap of {turn.max_tokens_total} tokens is reached."
    elif turn.max_cost_usd is not None and turn.spending.all_usd >= turn.max_cost_usd:
        reached = ExitReason.COST_CAP, f"The cap of {dollars(turn.max_cost_usd)} is reached."
    return reached and Ending(reached[0], _last_answer(turn), reached[1])


def _last_answer(turn: Turn) -> str:
    """What the turn had answered before words arrived that it has no room to answer too."""
    own = (m for m in reversed(turn.messages) if m.role is Role.ASSISTANT and m.turn_id == turn.id)
    newest = next(own, None)
    return "" if newest is None or newest.calls else output_text(turn)


def allow(turn: Turn, model: str, size: Callable[[], int], prices: Prices) -> Allowance | Ending:
    """What the caps let the next call of "provider:model" have, or the ending of the turn that it does not fit into.

    `size` is asked for the tokens of its request, as many as they may be, where anything is capped. An answer whose
    length the agent sets is not made shorter. Raises ConfigError where money is capped and the model has no price here.
    """
    wanted = turn.agent.max_output_tokens
    if turn.max_tokens_total is None and turn.max_cost_usd is None:
        return Allowance(wanted)
    request_tokens = size()
    least, most = wanted or LEAST_OUTPUT_TOKENS, wanted or _longest_answer(turn, request_tokens)
    spending = turn.spending + _lost(turn, model, request_tokens, prices)
    rooms: list[_Room] = []
    if turn.max_tokens_total is not None:
        rooms.append(_room_of_tokens(turn.max_tokens_total, turn, spending, request_tokens, least))
    if turn.max_cost_usd is not None:
        request, answer = _worst(model, request_tokens, prices)
        rooms.append(_room_of_money(turn.max_cost_usd, spending, request, answer, least))
    room = min(rooms, key=lambda r: r.output_tokens)
    if room.output_tokens >= most:
        return Allowance(wanted)
    if room.output_tokens < least:
        return replace(room.refusal, output_text=_last_answer(turn))
    why = f"The answer did not fit into what was left of {room.cap}: resume the turn with a higher one."
    return Allowance(room.output_tokens, replace(room.refusal, message=why))


def does_not_fit(turn: Turn, asked: Sequence[tuple[str, int, int]], prices: Prices) -> ExitReason | None:
    """The cap that has no room for all of these calls together, each a model and the most tokens in and out of it.

    Raises ConfigError as `allow` does.
    """
    if turn.max_tokens_total is not None:
        most = sum(request + answer for _, request, answer in asked)
        if turn.usage.total + turn.spending.estimated_tokens + most > turn.max_tokens_total:
            return ExitReason.TOKEN_CAP
    if turn.max_cost_usd is not None:
        dear = Decimal(0)
        for model, request_tokens, answer_tokens in asked:
            request, answer = _worst(model, request_tokens, prices)
            dear += request + answer * answer_tokens / _MILLION
        if turn.spending.all_usd + dear > turn.max_cost_usd:
            return ExitReason.COST_CAP
    return None


def _longest_answer(turn: Turn, request_tokens: int) -> int:
    window = turn.agent.context_window
    return USUAL_OUTPUT_TOKENS if window is None else max(min(USUAL_OUTPUT_TOKENS, window - request_tokens), 1)


@dataclass(frozen=True, slots=True)
class _Room:
    """How long an answer may get within one cap, and how the turn ends where that is not long enough."""

    output_tokens: int
    cap: str
    refusal: Ending


def _room_of_tokens(most: int, turn: Turn, spending: Spending, request_tokens: int, least: int) -> _Room:
    left = most - turn.usage.total - spending.estimated_tokens
    cap, needed = f"the cap of {most} tokens", request_tokens + least
    why = f"The next call may take {needed} tokens, and {max(left, 0)} of {cap} are left: resume with more tokens."
    return _Room(left - request_tokens, cap, Ending(ExitReason.TOKEN_CAP, message=why))


def _room_of_money(most: Decimal, spending: Spending, request: Decimal, answer: Decimal, least: int) -> _Room:
    """`request` is what the request may cost, `answer` what a million tokens of its answer do."""
    left = most - spending.all_usd
    fits = sys.maxsize if left >= request else -1  # a free answer, at any length
    if answer:
        fits = math.floor((left - request) / answer * _MILLION)
    cap, needed = f"the cap of {dollars(most)}", dollars(request + answer * least / _MILLION)
    shown = dollars(max(left, Decimal(0)))
    why = f"The next call may cost {needed}, and {shown} of {cap} are left: resume with more money."
    return _Room(fits, cap, Ending(ExitReason.COST_CAP, message=why))


def booked(turn: Turn, outcome: Outcome, model: str, size: Callable[[], int], prices: Prices) -> Outcome:
    """The outcome with its attempt priced, and with an estimate for each attempt that nobody saw the end of.

    `model` is the "provider:model" in use; `size` is asked for the tokens of its request where they are needed.
    """
    call, lost = outcome.model_call, turn.spending.lost_attempts
    if call is not None and call.usage is not None:
        asked = None if call.asked is None else prices(call.provider, call.asked, call.usage)
        cost = prices(call.provider, call.model, call.usage) if asked is None else asked
        outcome = replace(outcome, model_call=replace(call, cost_usd=cost), events=_with_cost(outcome.events, cost))
    elif call is not None and call.is_unknown:
        guess = _estimate(turn, f"{call.provider}:{call.asked or call.model}", size(), prices)
        outcome = replace(outcome, model_call=replace(call, estimate=guess))
    return replace(outcome, lost=Lost(lost, _dearest(turn, model, size(), prices))) if lost else outcome


def _with_cost(events: tuple[Event, ...], cost: Decimal | None) -> tuple[Event, ...]:
    if cost is None:
        return events
    return tuple(
        replace(e, payload={**e.payload, "cost_usd": float(cost)}) if e.type == "model.answered" else e for e in events
    )


def dollars(amount: Decimal) -> str:
    """An amount for a sentence: cents, and further digits where there are any."""
    whole, _, cents = f"{amount:.6f}".partition(".")
    return f"${whole}.{cents.rstrip('0').ljust(2, '0')}"


def _worst(model: str, request_tokens: int, prices: Prices) -> tuple[Decimal, Decimal]:
    """The most that a request may cost, and a million tokens of its answer. Raises ConfigError without a price."""
    provider, _, name = model.partition(":")
    written = Usage(cache_write_tokens=request_tokens)
    costs = [prices(provider, name, usage) for usage in (Usage(request_tokens), written)]
    answered = prices(provider, name, Usage(request_tokens, _MILLION))
    known = [cost for cost in costs if cost is not None]
    if answered is None or not known:
        raise ConfigError(
            f'The cost is capped, and no price of {model} is known here: set it as [prices."{name}"], or leave '
            "max_cost_usd out"
        )
    return max(known), answered - known[0]


def _lost(turn: Turn, model: str, request_tokens: int, prices: Prices) -> Spending:
    """What the attempts will be booked at that nobody saw the end of and nobody has estimated yet."""
    attempts = turn.spending.lost_attempts
    return Lost(attempts, _dearest(turn, model, request_tokens, prices)).spending if attempts else Spending()


def _dearest(turn: Turn, model: str, request_tokens: int, prices: Prices) -> Estimate:
    """What a lost attempt has come to: it was one of `model`, or of a reference, and the dearest of them counts."""
    guesses = [_estimate(turn, name, request_tokens, prices) for name in (model, *turn.agent.references)]
    return max(guesses, key=lambda guess: guess.cost_usd or Decimal(0))


def _estimate(turn: Turn, model: str, request_tokens: int, prices: Prices) -> Estimate:
    """What an attempt has come to, as far as anybody can tell: its request, and an answer as long as this turn's are."""
    output = usual_output(turn)
    provider, _, name = model.partition(":")
    return Estimate(request_tokens + output, prices(provider, name, Usage(request_tokens, output)))


def usual_output(turn: Turn) -> int:
    """How long an answer of this turn is taken to be, going by those that it has had."""
    usual = turn.usage.output_tokens // max(turn.counters.iterations_used, 1)
    return min(max(usual, LEAST_OUTPUT_TOKENS), turn.agent.max_output_tokens or USUAL_OUTPUT_TOKENS)
