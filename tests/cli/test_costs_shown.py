"""What people and programs are told of a turn's cost: what is known, what is not, and what is only estimated."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from ops.dev.scripted_provider.script import Tokens, calls
from persistence.events import StoredEvent
from persistence.records.spending import Spending
from persistence.records.status import TurnStatus
from persistence.records.usage import Usage
from persistence.sums import Sum
from persistence.views import TurnView
from tests.cli.bench import Place
from workers.cli import arguments, render, sentences, shapes

CENT = Decimal("0.01")


def view(spending: Spending) -> TurnView:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    return TurnView(
        turn_id=UUID(int=1),
        session_id=UUID(int=2),
        agent="default",
        status=TurnStatus.RUNNING,
        exit_reason=None,
        activity="thinking",
        output_text=None,
        message=None,
        iterations_used=1,
        iterations_max=90,
        grace_used=False,
        usage=Usage(10, 2),
        spending=spending,
        crash_count=0,
        fencing_token=1,
        waiting_for=None,
        batch_id=None,
        custom_id=None,
        parent_turn_id=None,
        created_at=at,
        started_at=at,
        ended_at=None,
        resumes=0,
        worker="w",
    )


def facts(spending: Spending) -> dict[str, str]:
    lines = render.card(view(spending)).splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize(
    ("spending", "cost", "estimated"),
    [
        (Spending(), None, None),
        (Spending(cost_usd=CENT), "$0.01", None),
        (Spending(cost_usd=Decimal("0.000012")), "$0.000012", None),
        (Spending(cost_usd=Decimal(0)), "$0.00", None),
        (Spending(unpriced_attempts=2), "unknown: no price is known for 2 attempts", None),
        (Spending(cost_usd=CENT, unpriced_attempts=1), "at least $0.01: no price is known for 1 attempt", None),
        (
            Spending(CENT, 0, 1, 900, 2 * CENT),
            "$0.01",
            "about 900 tokens, $0.02, for 1 attempt whose usage is not known",
        ),
        (Spending(unknown_attempts=2, estimated_tokens=9), None, "about 9 tokens, for 2 attempts whose usage is not known"),
        (
            Spending(unknown_attempts=1, lost_attempts=1),
            None,
            "nothing yet for 1 attempt whose usage is not known",
        ),
    ],
)  # fmt: skip
def test_show_says_what_is_known_and_keeps_the_estimate_apart(
    spending: Spending, cost: str | None, estimated: str | None
) -> None:
    told = facts(spending)

    assert (told.get("cost"), told.get("estimated")) == (cost, estimated)


def test_the_summary_of_a_turn_never_shows_a_part_of_its_cost_as_the_whole() -> None:
    assert "$" not in render.summary(view(Spending()))
    assert ", $0.01" in render.summary(view(Spending(cost_usd=CENT)))
    assert ", at least $0.01" in render.summary(view(Spending(cost_usd=CENT, unpriced_attempts=1)))


def test_an_answer_is_told_with_its_cost_where_that_is_known() -> None:
    told = {"iteration": 1, "model": "main:m", "latency_s": 1.5, "input_tokens": 10, "output_tokens": 5}
    at = datetime(2026, 5, 1, tzinfo=UTC)

    said = [sentences.sentence(StoredEvent(1, at, "model.answered", e)) for e in (told, told | {"cost_usd": 0.000012})]

    assert said == [f"iteration 1: main:m answers (1.5 s, 10 → 5 tokens{cost})" for cost in ("", ", $0.000012")]


def test_the_list_shows_a_cost_only_where_it_is_whole() -> None:
    _, known, partial = render.table([view(Spending(cost_usd=CENT)), view(Spending(CENT, 1))]).splitlines()

    assert "$0.01" in known
    assert "$" not in partial


def test_the_json_has_null_for_a_cost_that_is_not_known_and_what_is_known_beside_it() -> None:
    whole, partial = (shapes.turn(view(s)) for s in (Spending(cost_usd=CENT), Spending(CENT, 3, 2, 900, 2 * CENT)))

    assert (whole["cost_usd"], whole["known_cost_usd"], whole["estimated_cost_usd"]) == (0.01, 0.01, None)
    assert (partial["cost_usd"], partial["known_cost_usd"], partial["estimated_cost_usd"]) == (None, 0.01, 0.02)
    told = {name: partial["usage"][name] for name in ("unpriced_attempts", "unknown_attempts", "estimated_tokens")}
    assert told == {"unpriced_attempts": 3, "unknown_attempts": 2, "estimated_tokens": 900}


def test_a_real_worker_charges_what_the_configuration_says_and_stops_before_the_cap(place: Place) -> None:
    """Each call costs 0.02 dollars by the price in the configuration of the place."""
    asks = calls(("calculate", {"expression": "1 + 1"}), tokens=Tokens(10_000, 1_000))

    model = place.model("priced", asks, asks)
    done = place.call("run", "Hello", "--set", model, "--set", "max_cost_usd=0.05", "--json")

    assert done.code == 2, done.err
    told = done.json
    assert (told["exit_reason"], told["cost_usd"], told["known_cost_usd"]) == ("cost_cap", 0.04, 0.04)
    assert "The next call may cost" in done.err
    [of_tenant] = place.call("costs", "--tenant", "default", "--since", "1h", "--json").json_lines
    assert of_tenant["tenant"] == "default"
    assert of_tenant["known_cost_usd"] >= 0.04
    [of_turn] = place.call("costs", "--tree", told["turn_id"], "--json").json_lines
    assert (of_turn["turn_id"], of_turn["turns"], of_turn["cost_usd"]) == (told["turn_id"], 1, 0.04)
    assert "TENANT" in place.call("costs").out


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T12:00:00+02:00", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("2026-05-01 12:30", datetime(2026, 5, 1, 12, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_in_utc_where_it_says_nothing_else(text: str, meant: datetime) -> None:
    assert arguments.past(text) == meant


def test_a_time_may_be_so_long_ago() -> None:
    assert arguments.past("7d") < arguments.past("6d") < arguments.past("12h") < datetime.now(UTC)


@pytest.mark.parametrize("text", ["yesterday", "7", "d", "-1d", "9999999999999d", "2026-13-01", ""])
def test_a_time_that_is_none_is_wrong_usage(text: str) -> None:
    with pytest.raises(arguments.WrongUsage, match="is no time: write 7d"):
        arguments.past(text)


def test_a_sum_says_what_it_does_not_know() -> None:
    known = Sum("acme", 2, Usage(10, 2), Spending(cost_usd=CENT))
    partial = Sum(None, 1, Usage(1), Spending(CENT, 1, 1, 900))

    head, first, second = render.sums("TENANT", [known, partial]).splitlines()

    assert head.split() == ["TENANT", "TURNS", "TOKENS", "COST", "ESTIMATED"]
    assert first.split() == ["acme", "2", "12", "$0.01"]
    assert second.startswith("(none)")
    assert "at least $0.01" in second
    assert "900 tokens" in second
