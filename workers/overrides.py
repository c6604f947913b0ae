"""The settings that one turn is given over those of its agent: texts by key, as `--set KEY=VALUE` has them."""

from __future__ import annotations

from collections.abc import Mapping


class FromFile(str):
    """The text of a setting that stands in a file: every mistake in it is told with the path."""

    path: str

    def __new__(cls, text: str, path: str) -> FromFile:
        made = super().__new__(cls, text)
        made.path = path
        return made


def written(key: str, text: str) -> str:
    """The setting as somebody wrote it, for a sentence; of a long text only the beginning."""
    return f"--set {key}=" + (f"@{text.path}" if isinstance(text, FromFile) else text[:40])


def place(overrides: Mapping[str, str]) -> str:
    """Where these settings stand, for the beginning of a sentence: `--set`, and the files that some were read from."""
    files = [f"{key}=@{text.path}" for key, text in overrides.items() if isinstance(text, FromFile)]
    return " ".join(["--set", *files])
