"""Pictures: known by their bytes, bounded, and one sentence for what is none."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from orchestration.images import MOST_BYTES, MOST_IMAGES, BadImage, BadInput, content_of, from_bytes, from_url
from persistence.records.message import Image, Text
from workers.cli import arguments

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
IN_BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF89arest", "image/gif"),
        (b"GIF87arest", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_a_picture_is_known_by_its_bytes(data: bytes, kind: str) -> None:
    assert from_bytes(data) == Image(kind, data=base64.b64encode(data).decode())


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"%PDF-1.7", b"\0\0\0\0\0\0\0\0WEBPVP8 ", b"BM\0\0", PNG[1:]])
def test_anything_else_is_no_picture(data: bytes) -> None:
    with pytest.raises(BadImage, match="is no PNG, JPEG, GIF or WebP picture"):
        from_bytes(data)


def test_a_picture_may_have_what_the_strictest_provider_takes_and_no_more() -> None:
    largest = from_bytes(PNG + b"\0" * (MOST_BYTES - len(PNG)))
    assert len(largest.data) == 5 * 1024 * 1024

    with pytest.raises(BadImage, match=f"make it smaller than {MOST_BYTES:,}"):
        from_bytes(PNG + b"\0" * MOST_BYTES)


def test_an_address_is_kept_for_the_provider_and_a_data_address_is_read() -> None:
    assert from_url("https://example.org/a.png") == Image("", url="https://example.org/a.png")
    assert from_url(f"data:image/jpeg;base64,{IN_BASE64}") == Image("image/png", data=IN_BASE64)


@pytest.mark.parametrize("url", ["ftp://x/y", "https://", "file:///etc/passwd", "https://a b", "", "https://x/\x00"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(BadImage):
        from_url(url)


def test_texts_and_pictures_come_in_any_order_as_json_or_as_values() -> None:
    found = content_of(
        [
            {"type": "text", "text": "Compare\x00"},
            {"type": "image", "data": IN_BASE64, "media_type": "image/gif"},
            {"type": "image", "url": "https://example.org/b.png"},
            Text("and"),
            Image("image/png", data=IN_BASE64),
        ]
    )

    picture = Image("image/png", data=IN_BASE64)
    assert found == (Text("Compare\ufffd"), picture, Image("", url="https://example.org/b.png"), Text("and"), picture)


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ([{"type": "text"}], "block 1 of the input is none that a request can have"),
        ([{"type": "tool_call", "id": "a"}], "block 1 of the input is none"),
        (["words"], "block 1 of the input is none"),
        ([{"type": "text", "text": "a"}, {"type": "image"}], "block 2 of the input is none"),
        ([{"type": "image", "data": "aGVsbG8="}], "the picture in block 1 of the input is no PNG"),
        ([{"type": "image", "data": "not base64!"}], "the picture in block 1 of the input is no base64"),
        ([{"type": "image", "url": "ftp://x"}], "the picture in block 1 of the input is no http or https address"),
        ([{"type": "image", "data": "A" * 6_000_000}], "make it smaller"),
        (
            [{"type": "image", "url": "https://x/y"}] * (MOST_IMAGES + 1),
            "a request takes 20 pictures, and these are 21",
        ),
    ],
)
def test_what_is_no_request_is_refused_with_a_sentence(blocks: list[Any], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        content_of(blocks)

    assert told in str(caught.value)


def test_the_command_line_takes_files_and_addresses(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(PNG)

    found = arguments.images([str(tmp_path / "a.txt"), "https://example.org/b.png"])

    assert found == [Image("image/png", data=IN_BASE64), Image("", url="https://example.org/b.png")]


@pytest.mark.parametrize(
    ("name", "told"),
    [("missing.png", r"cannot be read \(No such file"), ("page.png", "is no PNG"), (".", r"cannot be read \(Is a dir")],
)
def test_what_the_command_line_cannot_use_is_wrong_usage(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "page.png").write_text("<html>")

    with pytest.raises(arguments.WrongUsage, match=told):
        arguments.images([str(tmp_path / name)])
