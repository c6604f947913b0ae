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


class OfItem(str):
    """The text of a setting that stands in a line of a batch's file, under `settings`."""


def named(key: str, text: str) -> str:
    """The setting's name as somebody wrote it, for a sentence."""
    return f"settings.{key}" if isinstance(text, OfItem) else f"--set {key}"


def written(key: str, text: str) -> str:
    """The setting as somebody wrote it, for a sentence; of a long text only the beginning."""
    if isinstance(text, OfItem):
        return f"{named(key, text)} = {text[:40]}"
    return f"--set {key}=" + (f"@{text.path}" if isinstance(text, FromFile) else text[:40])


def place(overrides: Mapping[str, str]) -> str:
    """Where these settings stand, for the beginning of a sentence: `--set`, and the files that some were read from."""
    files = [f"{key}=@{text.path}" for key, text in overrides.items() if isinstance(text, FromFile)]
    own = any(isinstance(text, OfItem) for text in overrides.values())
    if own and all(isinstance(text, OfItem) for text in overrides.values()):
        return "settings"
    return " ".join(["--set", *files]) + (" and settings" if own else "")
