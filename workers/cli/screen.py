"""Where a turn is watched: plain lines, or on a terminal a list of iterations that grows above what is going on now."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from persistence.events import StoredEvent
from workers.cli import render, sentences
from workers.cli.notices import one_line
from workers.cli.progress import Iteration, Progress
from workers.cli.speech import Printer, Speech, Told

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text


class Screen(Protocol):
    """Watches one turn, on stderr: stdout is for its answer."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...

    @property
    def wants_words(self) -> bool:
        """Whether it shows live text: `show` is then given that too."""
        ...

    def show(self, told: Told) -> None: ...

    def say(self, sentence: str) -> None:
        """Something about the watching, not of the turn."""
        ...


def choose(*, live: bool | None = None, show_thinking: bool = False) -> Screen:
    """The live view where stderr is a terminal that can move its cursor, else plain lines.

    The model's words are shown as they come if `live` says so, or if it says nothing and there is a terminal.
    """
    stream = sys.stderr
    wants_words = stream.isatty() or show_thinking if live is None else live
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return LiveScreen(stream, wants_words=wants_words, shows_thinking=show_thinking)
    return PlainScreen(stream, wants_words=wants_words, shows_thinking=show_thinking)


class PlainScreen:
    """One line an event, live text between them."""

    def __init__(self, stream: TextIO, *, wants_words: bool = False, shows_thinking: bool = False) -> None:
        self.wants_words = wants_words
        self._stream = stream
        self._printer = Printer(stream, sentences.line, shows_thinking=shows_thinking)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._printer.end()

    def show(self, told: Told) -> None:
        self._printer.show(told)

    def say(self, sentence: str) -> None:
        self._printer.end()
        print(f"perdure: {one_line(sentence)}", file=self._stream, flush=True)


class LiveScreen:
    """Finished iterations stay as lines; below them one line lives, with what goes on now and for how long."""

    def __init__(
        self,
        stream: TextIO,
        *,
        wants_words: bool = False,
        shows_thinking: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.wants_words = wants_words
        self._monotonic = monotonic
        self._progress = Progress()
        self._speech = Speech(shows_thinking)
        self._since = monotonic()
        self._console = Console(file=stream, highlight=False)
        self._live = Live(get_renderable=self._shown, console=self._console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, told: Told) -> None:
        if not isinstance(told, StoredEvent):
            self._speech.take(told)
            return  # the next refresh shows it
        before = self._progress.doing
        final = self._progress.take(told)
        self._speech.hear(told)
        if self._progress.doing != before:
            self._since = self._monotonic()
        for each in final:
            if isinstance(each, Iteration):
                self._keep_words(each)
            self._live.console.print(_iteration(each) if isinstance(each, Iteration) else _dim(each))
        self._live.refresh()

    def _keep_words(self, iteration: Iteration) -> None:
        """What the model said beside its calls stays above their line. The answer itself goes to stdout at the end."""
        if self._speech.iteration != iteration.n:
            return
        said = _words(self._speech) if iteration.tools else ()
        self._speech.forget()
        self._live.refresh()  # whatever is printed now draws the lines below it once more, as they last were
        for block in said:
            self._live.console.print(block)

    def say(self, sentence: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(f"perdure: {one_line(sentence)}", style="yellow"))

    def _shown(self) -> Group:
        """The newest lines of what is being said, and what goes on now."""
        from rich.console import Group
        from rich.text import Text

        width = self._console.width
        room = max(self._console.height // 2, 3)
        lines = [line for block in _words(self._speech) for line in block.wrap(self._console, width)][-room:]
        heading = [Text(f"── {self._speech.heading}", style="dim")] if lines else []
        return Group(*heading, *lines, self._now())

    def _now(self) -> Text:
        from rich.text import Text

        elapsed = self._monotonic() - self._since
        frame = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(elapsed * 10) % 10]
        doing = f"{self._progress.doing}: {self._speech.note}" if self._speech.note else self._progress.doing
        return Text.assemble((f"{frame} ", "cyan"), doing, (f"  {elapsed:.0f} s", "dim"))


def _words(speech: Speech) -> list[Text]:
    """Reasoning, if it is to be seen, and text, of the newest attempt."""
    from rich.text import Text

    thinking, text = speech.thinking.strip("\n"), speech.text.strip("\n")
    shown = [Text(thinking, style="dim italic")] if thinking else []
    return [*shown, Text(text)] if text else shown


def _iteration(iteration: Iteration) -> Text:
    from rich.text import Text

    line = Text.assemble((f"{iteration.n:>3}  ", "bold cyan"))
    if not iteration.tools:
        line.append("answers")
    same = Counter((tool.name, tool.status) for tool in iteration.tools)
    for n, ((name, status), times) in enumerate(same.items()):
        line.append(", " if n else "").append(f"{times} × {name}" if times > 1 else name)
        style, mark = ("green", "✓") if status == "succeeded" else ("red", status or "not run")
        line.append(f" {mark}", style=style)
    took = (
        f"   {render.seconds(iteration.duration_s)}, {render.tokens(iteration.input_tokens, iteration.output_tokens)}"
    )
    return line.append(f"{took}, {iteration.model}", style="dim")


def _dim(sentence: str) -> Text:
    from rich.text import Text

    return Text(f"     {sentence}", style="dim")
