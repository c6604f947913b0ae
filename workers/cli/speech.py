"""The live text of a turn as people read it: the words of its newest attempt, each once. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

from persistence.events import StoredEvent
from workers.cli.notices import one_line, printable
from workers.live.reader import Entry

_STATES = {"compressing": "its history is being summarised", "backing_off": "it rests before another attempt"}

Told: TypeAlias = StoredEvent | Entry


@dataclass(frozen=True, slots=True)
class Said:
    """Something new to show: a `heading` begins a line of its own, other words go on where the last ones ended."""

    text: str
    is_thinking: bool = False
    is_heading: bool = False


@dataclass(slots=True)
class Speech:
    """Takes events and live entries in the order in which they come."""

    shows_thinking: bool = False
    text: str = ""
    thinking: str = ""
    iteration: int = 0
    heading: str = ""
    note: str = ""
    _attempt: tuple[int, int] = (0, 0)
    _answered: int = 0
    _at: dict[str, int] = field(default_factory=dict[str, int])

    def hear(self, event: StoredEvent) -> None:
        """An event says what is final: words of an iteration that was answered are not told again."""
        self.note = ""
        if event.type == "model.answered":
            self._answered = max(self._answered, event.payload.get("iteration", 0))

    def take(self, entry: Entry) -> list[Said]:
        """What is new in an entry. Words that an older attempt still sends are not."""
        match entry.kind:
            case "text" | "thinking":
                return self._words(entry)
            case "progress":
                self.note = one_line(f"{entry.tool}: {entry.text}")
                return [Said(self.note, is_heading=True)]
            case "state":
                self.note = _STATES.get(entry.text, one_line(entry.text))
                return [Said(self.note, is_heading=True)]
            case _:
                return []

    def forget(self) -> None:
        """What was said has been shown for good."""
        self.text = self.thinking = self.heading = ""

    def _words(self, entry: Entry) -> list[Said]:
        said: list[Said] = []
        if entry.attempt > self._attempt:
            if entry.iteration <= self._answered:
                return []
            said.append(self._begin(entry))
        elif entry.attempt < self._attempt:
            return []
        at = self._at.get(entry.kind, 0)
        lost, words = "[…] " if entry.at > at else "", entry.text[max(at - entry.at, 0) :]
        self._at[entry.kind] = max(at, entry.at + len(entry.text))
        words = printable(lost + words)
        is_thinking = entry.kind == "thinking"
        if is_thinking and not self.shows_thinking:
            return said
        if is_thinking:
            self.thinking += words
        else:
            self.text += words
        return [*said, Said(words, is_thinking)]

    def _begin(self, entry: Entry) -> Said:
        """The words of a newer attempt take the place of those of the one before."""
        starts_over = self.iteration == entry.iteration and bool(self.text or self.thinking)
        self.forget()
        self._attempt, self.iteration, self._at = entry.attempt, entry.iteration, {}
        which = f", attempt {entry.n}" if entry.n > 1 else ""
        again = ": from the beginning" if starts_over else ""
        self.heading = one_line(f"iteration {entry.iteration}{which}, {entry.model}{again}")
        self.note = ""
        return Said(self.heading, is_heading=True)


def together(
    batches: Iterable[Sequence[StoredEvent]], read: Callable[[], Sequence[Entry]], *, at_a_time: int
) -> Iterator[list[Told]]:
    """Events and live text in one order. Of the past, events come first, and of its words those that are not final."""
    final: int | None = 0
    for batch in batches:
        entries = read()
        if final is None:
            yield [*entries, *batch]
            continue
        if batch and batch[-1].type == "turn.ended":
            entries = ()  # it has said its last word, which is not here
        answered = (e.payload.get("iteration", 0) for e in batch if e.type == "model.answered")
        final = max(final, *answered, 0)
        yield [*batch, *_of_now(entries, final)]
        if len(batch) < at_a_time:
            final = None


def _of_now(entries: Sequence[Entry], final: int) -> list[Entry]:
    """Words of iterations that are not answered yet; of what else was said, only what was said last."""
    return [e for n, e in enumerate(entries, 1) if e.iteration > final or (not e.iteration and n == len(entries))]


class Printer:
    """Writes events as lines, and live text between them as it comes."""

    def __init__(self, stream: TextIO, line: Callable[[StoredEvent], str], *, shows_thinking: bool = False) -> None:
        self._stream = stream
        self._line = line
        self._speech = Speech(shows_thinking)
        self._is_midline = False
        self._was_thinking = False

    def show(self, told: Told) -> None:
        if isinstance(told, StoredEvent):
            self._speech.hear(told)
            self._whole(self._line(told))
        else:
            for said in self._speech.take(told):
                self._say(said)
        self._stream.flush()

    def end(self) -> None:
        self._end_line()
        self._stream.flush()

    def _say(self, said: Said) -> None:
        if said.is_heading:
            self._whole(f"── {said.text}")
            self._was_thinking = False
            return
        if said.is_thinking is not self._was_thinking:
            self._end_line()
            if said.is_thinking:
                self._stream.write("(thinking) ")
            self._was_thinking = said.is_thinking
        self._stream.write(said.text)
        self._is_midline = not said.text.endswith("\n")

    def _whole(self, line: str) -> None:
        self._end_line()
        self._stream.write(f"{line}\n")

    def _end_line(self) -> None:
        if self._is_midline:
            self._stream.write("\n")
        self._is_midline = False
