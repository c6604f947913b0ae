"""Tables that look the same on a terminal, in a pipe and in a commit message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text in columns: the first to the left, the numbers to the right."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    body = [
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    rule = "-" * len(body[0])
    return "\n".join([title, rule, body[0].rstrip(), rule, *(line.rstrip() for line in body[1:]), ""])
