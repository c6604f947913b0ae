"""The system prompt as it is sent: the session's own, byte for byte, and who answers where that is not the agent's model."""

from __future__ import annotations

from persistence.records.turn import Turn


def system_prompt(turn: Turn, model: str) -> str:
    """The session's stored prompt (the agent's, should it have none); on a fallback, a line after it names the model.

    The line stands last, so that a fallback that shares the primary's cache still finds the prompt in it.
    """
    prompt = turn.system_prompt or turn.agent.system_prompt
    if turn.counters.model_index == 0:
        return prompt
    return f"{prompt}\n\nYou are {model}, standing in for another model that could not answer."
