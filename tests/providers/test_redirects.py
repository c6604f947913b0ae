"""Where a redirect may lead: nowhere but to the provider as it is configured."""

from __future__ import annotations

import httpx2
import pytest

from orchestration.providers.connections.bounds import NotFollowed, bound


def redirect(asked: str, location: str, status: int = 307) -> httpx2.Response:
    return httpx2.Response(status, headers={"location": location}, request=httpx2.Request("POST", asked))


@pytest.mark.parametrize(
    ("asked", "location"),
    [
        ("https://api.example/v1/messages", "/v2/messages"),
        ("https://api.example/v1/messages", "https://api.example/v2/messages"),
        ("https://api.example:443/v1", "https://api.example/v2"),
        ("http://api.example/v1", "https://api.example/v1"),
    ],
)
@pytest.mark.parametrize("status", [307, 308])
def test_within_one_server_and_up_to_tls_it_is_followed(asked: str, location: str, status: int) -> None:
    bound(redirect(asked, location, status))


@pytest.mark.parametrize(
    ("asked", "location"),
    [
        ("https://api.example/v1", "http://api.example/v1"),
        ("https://api.example/v1", "https://api.example:8443/v1"),
        ("https://api.example/v1", "https://other.example/v1"),
        ("https://api.example/v1", "https://api.example.other.example/v1"),
        ("https://api.example/v1", "https://api.example@other.example/v1"),
        ("https://api.example/v1", "//other.example/v1"),
        ("http://127.0.0.1:9000/v1", "http://127.0.0.1:9001/v1"),
        ("http://api.example/v1", "https://other.example/v1"),
    ],
)
def test_to_any_other_server_it_is_not(asked: str, location: str) -> None:
    with pytest.raises(NotFollowed, match="is not followed"):
        bound(redirect(asked, location))


@pytest.mark.parametrize("status", [301, 302, 303])
def test_one_that_turns_the_request_into_a_get_is_not_followed(status: int) -> None:
    with pytest.raises(NotFollowed):
        bound(redirect("https://api.example/v1", "/v2", status))


def test_what_it_says_holds_no_more_than_the_server() -> None:
    with pytest.raises(NotFollowed) as caught:
        bound(redirect("https://api.example/v1", "https://user:secret@other.example/path?key=secret"))

    assert "https://other.example" in str(caught.value)
    assert "secret" not in str(caught.value)
