"""What the store refuses, by what the caller does about it.

StoreError
├── LeaseHeld           the turn is not ours to take: leave quietly
│   ├── NeedsNewerWorker   it is written in a format of a later version: it stays queued, say so
│   └── Unreadable         it could not be loaded here and was given back: the log says why
├── LeaseLost           somebody else owns the turn now: stop, write nothing
├── InboxGrew           something arrived for the turn that the outcome did not know of: decide again
├── DatabaseUnavailable no answer, or one that says try again: the statement may or may not have been committed
├── DatabaseUnfit       the server is too old, or its schema is not ours: say so and stop
├── NotFound            no such turn or session
└── Refused             the request makes no sense now; the sentence says why and what to do
    ├── DuplicateTurn   the idempotency key was used for another request
    └── DuplicateBatch  the same of a batch
"""

from __future__ import annotations


class StoreError(Exception):
    """Its text is one sentence for a person."""


class LeaseHeld(StoreError):
    """Not queued, not its session's next, or kept for another worker."""


class NeedsNewerWorker(LeaseHeld):
    """The turn, or one of its session, was written by a later version."""


class Unreadable(LeaseHeld):
    """The turn was claimed, and given back because it cannot be loaded. So many such losses end it."""


class LeaseLost(StoreError):
    """The row carries a newer fencing token, or has ended."""


class InboxGrew(StoreError):
    """`inbox_n` is the number of the newest thing in the inbox."""

    def __init__(self, inbox_n: int) -> None:
        super().__init__(f"the inbox has grown to {inbox_n}")
        self.inbox_n = inbox_n


class DatabaseUnavailable(StoreError):
    """Postgres did not answer, went away in the middle, or asked to try again."""


class DatabaseUnfit(StoreError):
    """Postgres answers, but cannot be used as it is."""


class NotFound(StoreError):
    """No row of that id."""


class Refused(StoreError):
    """A request that cannot be carried out in the state that things are in."""


class DuplicateTurn(Refused):
    """Same key, other content."""


class DuplicateBatch(Refused):
    """Same key, other items."""
