"""The table of remedies, and the arithmetic of waiting."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.errors import ErrorClass
from orchestration.remedies import LONGEST_WAIT_S, REMEDIES, wait_s
from persistence.records.status import ExitReason, TurnStatus

turn_ids = st.uuids(version=4)


def test_every_class_of_error_has_its_row() -> None:
    assert set(REMEDIES) == set(ErrorClass)


def test_a_name_that_an_older_or_a_newer_version_stored_is_understood() -> None:
    assert ErrorClass("timeout") is ErrorClass.TIMEOUT
    assert ErrorClass("of a version to come") is ErrorClass.UNKNOWN


def test_another_credential_is_tried_where_the_error_is_that_of_one() -> None:
    assert {e for e, r in REMEDIES.items() if r.rotates} == {ErrorClass.AUTH, ErrorClass.BILLING, ErrorClass.RATE_LIMIT}


def test_no_row_completes_a_turn() -> None:
    assert {r.exit_reason.status for r in REMEDIES.values()} <= {TurnStatus.FAILED, TurnStatus.INCOMPLETE}


@pytest.mark.parametrize(
    ("error", "retries", "exit_reason"),
    [
        (ErrorClass.AUTH, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.BILLING, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.RATE_LIMIT, True, ExitReason.RATE_LIMITED),
        (ErrorClass.UPSTREAM_RATE_LIMIT, True, ExitReason.RATE_LIMITED),
        (ErrorClass.OVERLOADED, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.SERVER_ERROR, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.CONNECT, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.TLS, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.TIMEOUT, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.CONNECT_TIMEOUT, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.FIRST_TOKEN_TIMEOUT, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.IDLE_TIMEOUT, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.CALL_TIMEOUT, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.MALFORMED_STREAM, True, ExitReason.PROVIDER_FAILED),
        (ErrorClass.CONTEXT_OVERFLOW, False, ExitReason.CONTEXT_OVERFLOW),
        (ErrorClass.PAYLOAD_TOO_LARGE, False, ExitReason.CONTEXT_OVERFLOW),
        (ErrorClass.OUTPUT_CAP, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.THINKING_SIGNATURE, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.MODEL_NOT_FOUND, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.CONTENT_POLICY, False, ExitReason.REFUSED),
        (ErrorClass.REFUSAL, False, ExitReason.REFUSED),
        (ErrorClass.FORMAT_ERROR, False, ExitReason.PROVIDER_FAILED),
        (ErrorClass.EMPTY, True, ExitReason.EMPTY_RESPONSE),
        (ErrorClass.TRUNCATED, True, ExitReason.OUTPUT_TRUNCATED),
        (ErrorClass.UNKNOWN, True, ExitReason.PROVIDER_FAILED),
    ],
)
def test_what_an_error_is_good_for(error: ErrorClass, retries: bool, exit_reason: ExitReason) -> None:
    assert (REMEDIES[error].retries, REMEDIES[error].exit_reason) == (retries, exit_reason)


@given(turn_ids, st.integers(1, 11), st.floats(0.001, 1.5))
def test_waits_keep_growing_under_their_jitter(turn_id: UUID, attempts: int, base_s: float) -> None:
    now, later = (wait_s(turn_id, n, base_s=base_s, retry_after_s=None) for n in (attempts, attempts + 1))

    assert later > now
    assert 0.8 <= now / (base_s * 2 ** (attempts - 1)) <= 1.2


@given(turn_ids, st.integers(1, 20), st.floats(0, LONGEST_WAIT_S))
def test_what_a_provider_asked_for_is_waited_and_a_little_more(
    turn_id: UUID, attempts: int, retry_after_s: float
) -> None:
    waited = wait_s(turn_id, attempts, base_s=1.0, retry_after_s=retry_after_s)

    assert retry_after_s <= waited <= retry_after_s * 1.1


@given(turn_ids, st.integers(1, 10_000), st.one_of(st.none(), st.floats(LONGEST_WAIT_S, 1e12)))
def test_nobody_makes_a_turn_wait_for_ever(turn_id: UUID, attempts: int, retry_after_s: float | None) -> None:
    assert wait_s(turn_id, min(attempts, 900), base_s=1.0, retry_after_s=retry_after_s) <= LONGEST_WAIT_S * 1.2


@given(turn_ids, st.integers(1, 10))
def test_a_turn_waits_the_same_on_any_worker(turn_id: UUID, attempts: int) -> None:
    first, second = (wait_s(UUID(str(turn_id)), attempts, base_s=1.0, retry_after_s=None) for _ in range(2))

    assert first == second


def test_turns_that_fail_at_the_same_instant_do_not_come_back_at_the_same_instant() -> None:
    waits = {round(wait_s(UUID(int=n), 1, base_s=1.0, retry_after_s=5.0), 3) for n in range(100)}

    assert len(waits) > 80
