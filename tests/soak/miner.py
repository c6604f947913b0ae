"""The model of a long session: it digs site after site, knowing nothing but what its request says.

All that it does is drawn from the seed and the request, so that who asks again at the same place gets the same; only a
fault strikes the first attempt alone.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, replace
from typing import Any

from ops.dev.scripted_provider.asked import Asked
from ops.dev.scripted_provider.script import Answer, Call, Redacted, Reply, Text, Thinking, broken, reply, status
from orchestration import compression
from tests.soak.tools import words

_ASKED = re.compile(r"Dig at sites (\d+) to (\d+)\.")
_SITE = re.compile(r"site (\d+)")

_FAULT, _ODD = 0.06, 0.12
_FAULTS: tuple[Answer, ...] = (
    status(500),
    status(529),
    status(429, retry_after="0.01"),
    broken(reply("It breaks off in the middle of a word."), "reset"),
    broken(reply("It breaks off before its end."), "close", "before-end"),
    broken(reply("It reports an error in the stream."), "error"),
    reply(""),
    reply(" \n "),
    Reply((Call("dig", '{"n": 1'),), finish="length"),
)


@dataclass(frozen=True)
class Miner:
    """One provider's model. `thinks` says whether it shows its reasoning, `is_down` at which sites it fails for good."""

    seed: str
    thinks: bool
    down: frozenset[int] = frozenset()

    def __call__(self, asked: Asked) -> Answer:
        if asked.system == compression.SYSTEM:
            return self._summary(asked)
        first, last = map(int, _ASKED.findall("\n".join(m.text for m in asked.messages if m.role == "user"))[-1])
        dug = _dug(asked, first - 1)
        if dug // 10 in self.down:
            return status(503)
        choose = random.Random(f"{self.seed} {first} {dug} {len(asked.messages)}")
        if choose.random() < _FAULT and asked.attempt == 1:
            return choose.choice(_FAULTS)
        thought = self._thought(choose, dug)
        if not asked.may_call_tools:
            wanted = (Call("dig", json.dumps({"n": dug + 1})),) if choose.random() < 0.3 else ()
            return Reply((*thought, Text(f"No more calls: {dug} are dug."), *wanted))
        if dug >= last:
            return Reply((*thought, Text(f"Dug up to {last}. {words(choose, 200)}")))
        said = (Text(words(choose, choose.choice((10, 100, 1_500)))),) if choose.random() < 0.3 else ()
        return Reply((*thought, *said, *self._calls(choose, dug, last)))

    def _summary(self, asked: Asked) -> Answer:
        sites = [int(n) for n in _SITE.findall(asked.messages[-1].text)]
        choose = random.Random(f"{self.seed} {len(asked.raw)}")
        if choose.random() < _FAULT and asked.attempt == 1:
            return choose.choice(_FAULTS)
        return reply(f"## Done\n1. Sites were dug up to site {max(sites, default=0)}.\n{words(choose, 600)}")

    def _thought(self, choose: random.Random, dug: int) -> tuple[Thinking | Redacted, ...]:
        if not self.thinks:
            return ()
        hidden = (Redacted(f"hidden {dug}"),) if choose.random() < 0.3 else ()
        return (Thinking(f"After {dug}: {words(choose, 150)}"), *hidden)

    def _calls(self, choose: random.Random, dug: int, last: int) -> tuple[Call, ...]:
        wanted = range(dug + 1, min(dug + choose.choice((1, 1, 1, 2, 3)), last) + 1)
        calls = [Call("dig", json.dumps({"n": n})) for n in wanted]
        if choose.random() < 0.2:
            calls.append(Call("post", json.dumps({"n": dug + 1})))
        if choose.random() < _ODD:
            odd: tuple[Call, ...] = (
                Call("dig_deeper", json.dumps({"n": dug + 1})),
                Call("dig", '{"n": 1, "text": "no end'),
                Call("dig", '["not", "an object"]'),
                Call("dig", '{"site": "one"}'),
                Call("dig", json.dumps({"n": "\ud800 no number"})),
            )
            calls.insert(choose.randrange(len(calls) + 1), choose.choice(odd))
        if choose.random() < 0.05:  # as servers do that number the calls of each reply
            calls = [replace(c, id=f"call_{k}") for k, c in enumerate(calls)]
        return tuple(calls)


def _dug(asked: Asked, before: int) -> int:
    """The last site that a call of this request was for, in the newest message that has any."""
    for message in reversed(asked.messages):
        sites = [n for r in message.results if (n := _site(r.call.arguments)) is not None and n > before]
        if sites:
            return max(sites)
        if message.role == "user" and _ASKED.search(message.text):
            break
    return before


def _site(arguments: Any) -> int | None:
    n = arguments.get("n") if isinstance(arguments, dict) else None
    return n if isinstance(n, int) else None
