"""The form that some servers want ids of calls to have: Mistral's API, and chat templates of its models."""

from __future__ import annotations

import re

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.rules.common import Refused


def check_call_ids(asked: Asked, chars: int) -> None:
    """Raise Refused for the first id of a call, or of a result, that is not of so many letters and digits."""
    fits = re.compile(rf"[a-zA-Z0-9]{{{chars}}}")
    for message in asked.messages:
        for call in (*message.calls, *(result.call for result in message.results)):
            if not fits.fullmatch(call.id):
                told = f"Tool call id was {call.id} but must be a-z, A-Z, 0-9, with a length of {chars}."
                raise Refused("mistral.call_id", told, code="3280")
