"""The tools of a long session: results of every size and script, faults, and an effect that must not happen twice."""

from __future__ import annotations

import random
from collections import Counter

from orchestration.ports import ToolContext
from orchestration.tools import ToolError, tool

_LETTERS = (
    "abc def ghi ",
    "äöü ß é ñ ",
    "日本語の文 ",
    "مرحبا بالعالم ",
    "שלום עולם ",
    "हिन्दी ",
    "👩‍👩‍👧‍👦🏳️‍🌈👍🏽 ",
    "e\u0301o\u0308 ",
    "\u2028\u2029\x85\x0b\x0c\r\n",
    "\ud800 \udfff \U0001f600",
    "nul\x00nul ",
    '{"quoted": "\\"json\\""} ',
    "<tag>&amp;</tag> ",
    "\x1b[31mred\x1b[0m\x07 ",
)
# From a few bytes to more than any result may have.
_SIZES = (0, 3, 40, 200, 1_500, 1_500, 4_000, 4_000, 9_000, 30_000, 150_000)

# Which calls of `post` have started, whatever became of their workers.
posted: Counter[str] = Counter()


def words(choose: random.Random, size: int) -> str:
    """About `size` characters, the same for the same choices; nothing makes them short."""
    pieces: list[str] = []
    length = 0
    while length < size:
        piece = choose.choice(_LETTERS) + str(choose.randrange(10_000))
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)[:size]


@tool(effect="reads")
def dig(n: int) -> object:
    """Dig at a site: the same site always yields the same, whatever that is."""
    choose = random.Random(f"site {n}")
    text = f"site {n}: {words(choose, choose.choice(_SIZES))}"
    match choose.randrange(14):
        case 0:
            return text.encode("utf-8", "surrogatepass") + b"\xff\xfe\x00"
        case 1:
            return {"site": n, "nul\x00key": {"deep": [text[:2_000], None, 1.5]}, "\ud800": True}
        case 2:
            return None
        case 3:
            raise ToolError(f"The site is closed: {text[:500]}")
        case 4:
            raise ValueError(f"broke at {text[:300]}")
        case _:
            return text


@tool(effect="once")
def post(ctx: ToolContext, n: int) -> str:
    """Post a find: it must not be posted twice."""
    posted[f"{ctx.turn_id}:{ctx.call_id}"] += 1
    return f"find {n} is posted"
