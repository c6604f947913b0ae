"""What leaves a text before another model reads it, and what must stay in it."""

from __future__ import annotations

import time

import pytest

from orchestration.redaction import MASK, redacted

# Put together here, so that no scanner takes this file for a leak.
_BODY = "Ab1" * 12
SECRETS = [
    "sk-" + _BODY,
    "sk-ant-REDACTED" + _BODY,
    "sk_live_" + _BODY,
    "ghp_" + _BODY,
    "github_pat_" + _BODY,
    "glpat-" + _BODY,
    "xoxb-" + "1234567890-abc",
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "AIza" + _BODY,
    "hf_" + _BODY,
    f"eyJ{_BODY}.eyJ{_BODY}.{_BODY}",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "the key is {}.", '{{"x": "{}"}}', "a={}\nb", "'{}'"])
def test_a_key_that_says_what_it_is_is_masked(secret: str, around: str) -> None:
    shown = redacted(around.format(secret))

    assert secret not in shown
    assert shown == around.format(MASK)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://bob:hunter2@db:5432/x", f"postgres://bob:{MASK}@db:5432/x"),
        ("Authorization: Bearer abcdefghijklmnop123", f"Authorization: Bearer {MASK}"),
        ("password = 'hunter22'", f"password = '{MASK}'"),
        ('{"api_key": "1234-5678"}', f'{{"api_key": "{MASK}"}}'),
        ('{\\"client_secret\\": \\"1234-5678\\"}', f'{{\\"client_secret\\": \\"{MASK}\\"}}'),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", f"AWS_SECRET_ACCESS_KEY={MASK}"),
    ],
)
def test_what_a_name_calls_a_secret_is_masked_and_the_name_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"-----BEGIN RSA PRIVATE KEY-----\n{_BODY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{_BODY}",
        f"{_BODY}\n{_BODY}\n-----END EC PRIVATE KEY-----",
    ],
    ids=["whole", "cut at its end", "cut at its start"],
)
def test_a_private_key_is_masked_also_where_it_was_cut(text: str) -> None:
    assert redacted(text) == MASK


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f2a9c41d0b7e5a86c1234567890abcdef123456",
        "id 0198f3c2-7b1e-7c44-9d5e-2f6a7b8c9d0e",
        "the password was wrong; the secretary said so",
        "https://example.com/a:b/c@d",
        "see sk-learn and task-1234567890123456789012345",
        "/srv/data/report-2026-11-30.csv holds 1,234,567 rows",
        "max_tokens: 128000000",
    ],
)
def test_names_ids_and_prose_stay(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("unit", ["a", "-", "sk-", "password_", "http://", "Bearer ", "-----BEGIN ", "eyJ", "secret: "])
def test_no_text_takes_long(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    started = time.process_time()

    redacted(text)

    assert time.process_time() - started < 3.0
