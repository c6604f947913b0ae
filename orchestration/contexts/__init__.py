"""What joins the request of a turn and is no part of the system prompt: the date, files of the workspace, what your code knows.

A function that an agent names in `context` gets a ContextRequest (or nothing, if it takes no argument) and returns text,
or None where it has nothing to say.
"""

from orchestration.contexts.sources import ContextRequest

__all__ = ["ContextRequest"]
