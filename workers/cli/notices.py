"""Sentences on stderr: errors, warnings of the libraries below us, and nothing else that is not asked for."""

from __future__ import annotations

import logging
import sys

# What a door could not do at once and something else will do later, by the name that it logs.
_SENTENCES = {
    "wake.not_sent": "Redis did not take the wake; the turn is stored, and starts when Redis and a worker are there",
    "interrupt.not_rung": "Redis did not take the interrupt; it is stored, and its worker sees it within seconds",
    "interrupt.not_cleared": "Redis still holds an old interrupt key; a worker removes it within seconds",
    "result.not_stored": "Redis did not take the result; it is sent again when Redis is back",
    "result.not_forgotten": "Redis still holds the old result; AsyncResult shows it until the turn ends again",
}

# C0, DEL and C1, but for tabs and line ends. Format characters stay: many scripts are not written without them.
_STEERING = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\ufffd")
del _STEERING[ord("\t")], _STEERING[ord("\n")]


def start() -> None:
    """Show warnings as sentences. A command that is a service replaces this by its own logs."""
    handler = _Sentences(logging.WARNING)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


def say(sentence: str) -> None:
    """One line on stderr, after the command's name."""
    print(f"perdure: {one_line(sentence)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` without the control characters that would steer a terminal: names and words may come from a model."""
    return text.replace("\r\n", "\n").translate(_STEERING)


def one_line(text: str) -> str:
    """The same, and nothing in it can look like another line."""
    return printable(text).replace("\n", " ")


class _Sentences(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        say(_SENTENCES.get(said, said))
