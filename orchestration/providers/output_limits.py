"""How long an answer a provider lets us ask for, as it says so when it refuses a request for a longer one (pure)."""

from __future__ import annotations

import re

# What "max_tokens" is called here and there.
_FIELD = r"max_?(?:(?:completion|output|new)_?)?tokens"
_NUMBER = r"`?(\d[\d,]{0,11})`?"

# The limit of the model, in the words of: OpenAI Chat; Anthropic; OpenAI Responses; Bedrock; DeepSeek, DashScope, Ark
# ("should be in [1, 8192]"); Groq, Mistral, Fireworks; Vertex ("8193 (exclusive)" is one more than the limit).
_OF_MODEL = tuple(
    re.compile(pattern)
    for pattern in (
        rf"at most {_NUMBER} (?:completion|output) tokens",
        rf"{_FIELD}`?: \d+ > {_NUMBER}, which is the maximum",
        rf"{_FIELD}.{{0,80}}expected a value <= {_NUMBER}",
        rf"maximum tokens you requested exceeds the model limit of {_NUMBER}",
        rf"{_FIELD}.{{0,60}}\[\d+, ?{_NUMBER}\]",
        rf"{_FIELD}.{{0,40}}(?:less than or equal to|must be <=|at most|cannot exceed|maximum value of) {_NUMBER}",
    )
)
_UP_TO_EXCLUSIVE = re.compile(rf"{_FIELD}.{{0,120}}to {_NUMBER} \(exclusive\)")
_MENTIONED = re.compile(
    rf"{_FIELD}.{{0,30}}(?:is too large|too high|exceeds|is limited|above the maximum|must be less than)"
    rf"|(?:range of|invalid) {_FIELD}"
)

# Question and answer together, in the words of: OpenAI, vLLM before 0.9; vLLM since; Anthropic before Claude 4.5.
_IN_WINDOW = (
    re.compile(
        r"maximum context length is (?P<window>\d{1,9}) tokens.{0,80}\((?P<input>\d{1,9}) in the messages.{0,40}?in the completion"
    ),
    re.compile(
        rf"{_FIELD}.{{0,200}}context length is\s+(?P<window>\d{{1,9}}) tokens and your request has (?P<input>\d{{1,9}}) input"
    ),
    re.compile(r"(?P<input>\d{1,9}) \+ \d+ > (?P<window>\d{1,9})"),
)


def output_limit(text: str) -> int | None:
    """The most tokens that an answer may be asked for, if the refusal says it; `text` is in lower case.

    Where question and answer have to fit one window, that is half of it: a limit that holds for the next questions too.
    """
    for wording in _OF_MODEL:
        if found := wording.search(text):
            return _whole(found[1])
    if found := _UP_TO_EXCLUSIVE.search(text):
        return _whole(found[1]) - 1
    window = _roomy_window(text)
    return None if window is None else window // 2


def is_output_cap(text: str) -> bool:
    """Whether a refusal means that the answer was allowed to get too long, and nothing else; `text` is in lower case."""
    return output_limit(text) is not None or bool(_MENTIONED.search(text) and "context" not in text)


def _roomy_window(text: str) -> int | None:
    """The window of a request that was too large for its answer alone: of a question that fills less than half of it."""
    for wording in _IN_WINDOW:
        if found := wording.search(text):
            window = int(found["window"])
            return window if int(found["input"]) < window // 2 else None
    return None


def _whole(number: str) -> int:
    return int(number.replace(",", ""))
