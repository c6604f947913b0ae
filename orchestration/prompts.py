"""The system prompt as it is sent: the session's own, byte for byte, and who answers where that is not the agent's model."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from uuid import UUID

from orchestration.thinking import binds_to_prefix
from persistence.records.turn import Turn


def system_prompt(turn: Turn, model: str) -> str:
    """The session's stored prompt; on a fallback, a line after it names the model.

    The line stands last, so that a fallback that shares the primary's cache still finds the prompt in it. A model that
    binds its thinking to all that stands before it goes without: as the primary of another turn it was asked, or will
    be, without the line, and what it thought there would be refused.
    """
    prompt = turn.system_prompt
    if turn.counters.model_index == 0 or binds_to_prefix(model):
        return prompt
    return f"{prompt}\n\nYou are {model}, standing in for another model that could not answer."


@lru_cache(maxsize=1024)
def prompt_cache_key(session_id: UUID) -> str:
    """What tells a provider that two requests begin alike: the same for all of a session, and no id of ours."""
    return hashlib.sha256(b"perdure session " + session_id.bytes).hexdigest()[:32]
