"""What the stack says when it cannot do its work."""

from __future__ import annotations

from orchestration.errors import PerdureError


class StackError(PerdureError):
    """A server cannot be started, found or stopped; the sentence says why and what to do."""
