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
from workers.cli import render
from workers.cli.notices import one_line
from workers.cli.progress import Iteration, Progress

if TYPE_CHECKING:
    from rich.text import Text


class Screen(Protocol):
    """Watches one turn, on stderr: stdout is for its answer."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...

    def show(self, event: StoredEvent) -> None: ...

    def say(self, sentence: str) -> None:
        """Something about the watching, not of the turn."""
        ...


def choose() -> Screen:
    """The live view where stderr is a terminal that can move its cursor, else plain lines."""
    stream = sys.stderr
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return LiveScreen(stream)
    return PlainScreen(stream)


class PlainScreen:
    """One line an event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stream.flush()

    def show(self, event: StoredEvent) -> None:
        print(render.line(event), file=self._stream, flush=True)

    def say(self, sentence: str) -> None:
        print(f"perdure: {one_line(sentence)}", file=self._stream, flush=True)


class LiveScreen:
    """Finished iterations stay as lines; below them one line lives, with what goes on now and for how long."""

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._monotonic = monotonic
        self._progress = Progress()
        self._since = monotonic()
        console = Console(file=stream, highlight=False)
        self._live = Live(get_renderable=self._now, console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: StoredEvent) -> None:
        before = self._progress.doing
        final = self._progress.take(event)
        if self._progress.doing != before:
            self._since = self._monotonic()
        for each in final:
            self._live.console.print(_iteration(each) if isinstance(each, Iteration) else _dim(each))
        self._live.refresh()

    def say(self, sentence: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(f"perdure: {one_line(sentence)}", style="yellow"))

    def _now(self) -> Text:
        from rich.text import Text

        elapsed = self._monotonic() - self._since
        frame = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(elapsed * 10) % 10]
        return Text.assemble((f"{frame} ", "cyan"), self._progress.doing, (f"  {elapsed:.0f} s", "dim"))


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
