"""A history in plain words: what a summary is made from, and what a model reads of its own past. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from persistence.records.message import Block, Call, CallStatus, Image, Message, Origin, Result, Role, Text

_SPEAKERS = {
    Origin.USER: "User",
    Origin.STEER: "User, while the agent worked",
    Origin.NOTICE: "Notice",
    Origin.MODEL: "Agent",
    Origin.TOOL: "Tool",
}


# How much more than what is shown is looked at, so that nothing is judged by the half of it that a cut left.
_MARGIN = 500


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Style:
    """The most characters of one text and of the arguments of one call, and what is done to each of them.

    What is longer shows its start and its end.
    """

    text: int = 5_500
    arguments: int = 1_500
    tidy: Callable[[str], str] = _as_it_is

    def within(self, chars: int) -> Style:
        """The same, where there is room for so much of one text."""
        return Style(min(self.text, chars), min(self.arguments, chars), self.tidy)


WHOLE = Style(text=10**9, arguments=10**9)


def line(message: Message, style: Style) -> str:
    """A message as text, with its number. Thinking is left out."""
    spoken = [words for block in message.sent if (words := _words(block, style))]
    if message.role is Role.TOOL:
        return "\n".join(f"[{message.seq}] {words}" for words in spoken)
    return f"[{message.seq}] {_SPEAKERS[message.origin]}: " + "\n".join(spoken)


def _words(block: Block, style: Style) -> str:
    match block:
        case Text(text=text):
            return cut(text.strip(), style.text, style.tidy)
        case Call(name=name, arguments=arguments):
            return f"calls {name} with {cut(arguments, style.arguments, style.tidy)}"
        case Result(content=content, status=status, images=images):
            how = "" if status is CallStatus.SUCCEEDED else f", {status}"
            return f"Result{how}: {cut(content, style.text, style.tidy)}" + "\n(a picture)" * len(images)
        case Image():
            return "(a picture)"
        case _:
            return ""


def cut(text: str, most: int, tidy: Callable[[str], str] = _as_it_is) -> str:
    """`text`, tidied, in about `most` characters: three quarters of them from its start, the others from its end."""
    if len(text) <= most:
        return tidy(text)
    end = most // 4
    start = most - end
    left_out = f"\n[… {len(text) - most:,} characters left out …]\n"
    tail = tidy(text[-end - _MARGIN :])[-end:] if end else ""
    return tidy(text[: start + _MARGIN])[:start] + left_out + tail
