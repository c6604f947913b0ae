"""Remaining-quota headers of all providers, on success and on refusal, in a neutral value.

AC-20: rate-limit reset headers stand in where Retry-After is missing.
"""

from __future__ import annotations

import httpx2
import pytest

from ops.dev.scripted_provider.script import reply, status
from orchestration.errors import ErrorClass, ModelError
from orchestration.providers.quota_headers import quota_of
from orchestration.providers.settings import Api
from orchestration.quota import Meter, Quota
from tests.providers.bench import APIS, ask_once
from tests.support.provider import ScriptedProvider, provider

__all__ = ["provider"]

DATE = "Sun, 01 Feb 2026 10:00:00 GMT"


def openai(remaining: str = "0", limit: str = "60", reset: str = "1s", kind: str = "requests") -> dict[str, str]:
    return {
        f"x-ratelimit-remaining-{kind}": remaining,
        f"x-ratelimit-limit-{kind}": limit,
        f"x-ratelimit-reset-{kind}": reset,
    }


def anthropic(remaining: str, reset: str, kind: str = "requests") -> dict[str, str]:
    name = f"anthropic-ratelimit-{kind}"
    return {f"{name}-limit": "50", f"{name}-remaining": remaining, f"{name}-reset": reset}


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400.0),
        ("7.66s", 7.66),
        ("10", 10.0),
        ("0", 0.0),
        ("1769940030", 30.0),
        ("1769940030000", 30.0),
        ("2026-02-01T10:00:30Z", 30.0),
        ("2026-02-01T09:00:00Z", 0.0),
        ("2026-02-01T10:00:30", None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("-3", None),
    ],
)
def test_every_form_of_a_reset_is_read(told: str, seconds: float | None) -> None:
    quota = quota_of(httpx2.Headers(openai(reset=told) | {"date": DATE}))

    assert quota is not None
    assert quota.requests is not None
    assert quota.requests.full_in_s == pytest.approx(seconds)


def test_the_meters_of_openai() -> None:
    headers = openai("59", "60", "1s") | openai("149984", "150000", "6m0s", "tokens")

    assert quota_of(httpx2.Headers(headers)) == Quota(Meter(59, 60, 1.0), Meter(149_984, 150_000, 360.0))


def test_the_meters_of_anthropic() -> None:
    kinds = ("requests", "tokens", "input-tokens", "output-tokens")
    headers = {k: v for n, kind in enumerate(kinds) for k, v in anthropic(str(n), "2026-02-01T10:00:09Z", kind).items()}

    found = quota_of(httpx2.Headers(headers | {"date": DATE}))

    assert found == Quota(*(Meter(n, 50, 9.0) for n in range(4)))


@pytest.mark.parametrize("headers", [{}, {"x-ratelimit-remaining-requests": "many"}, {"x-ratelimit-unknown": "3"}])
def test_headers_without_a_sense_are_no_quota(headers: dict[str, str]) -> None:
    assert quota_of(httpx2.Headers(headers)) is None


def headers_of(api: Api, left: int, seconds: int) -> dict[str, str]:
    return anthropic(str(left), str(seconds)) if api is Api.ANTHROPIC else openai(str(left), "60", f"{seconds}s")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_adapter_hands_the_meters_of_an_answer_on(provider: ScriptedProvider, api: Api, as_json: bool) -> None:
    model = provider.script("main", [reply("Hello.", as_json=as_json, headers=headers_of(api, 7, 5))])

    quota = ask_once(api, provider.url, model=model).quota

    assert quota is not None
    assert quota.requests is not None
    assert (quota.requests.left, quota.requests.full_in_s) == (7, 5.0)


@pytest.mark.parametrize("api", APIS)
def test_every_adapter_hands_the_meters_of_a_refusal_on(provider: ScriptedProvider, api: Api) -> None:
    model = provider.script("main", [status(429, headers=headers_of(api, 0, 30))])

    with pytest.raises(ModelError) as caught:
        ask_once(api, provider.url, model=model)

    assert caught.value.error is ErrorClass.RATE_LIMIT
    assert caught.value.quota is not None
    assert caught.value.retry_after_s == pytest.approx(30 / (60 if api is not Api.ANTHROPIC else 50))


@pytest.mark.parametrize("api", APIS)
def test_retry_after_counts_before_the_meters(provider: ScriptedProvider, api: Api) -> None:
    model = provider.script("main", [status(429, retry_after=2, headers=headers_of(api, 0, 30))])

    with pytest.raises(ModelError) as caught:
        ask_once(api, provider.url, model=model)

    assert caught.value.retry_after_s == 2.0
