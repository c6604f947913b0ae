"""Ids of calls for servers that take them in one length alone: Mistral's want nine letters and digits.

https://mistralai.github.io/mistral-common/usage/tools/
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakKeyDictionary

from persistence.records.message import Block, Call, Message, Result

_CHARS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# By message: the names that it was given last, and what it became.
_renamed: WeakKeyDictionary[Message, tuple[tuple[str, ...], Message]] = WeakKeyDictionary()


def fitted(messages: Sequence[Message], chars: int) -> Sequence[Message]:
    """`messages` with every call under an id of `chars` letters and digits, and its result under the same.

    An id keeps its new name as long as what stands before it is the same, and no two have one name. The same message is
    returned every time for the same names, so that an encoder knows it again.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for call_id in dict.fromkeys(call_id for message in messages for call_id in _ids(message.sent)):
        names[call_id] = _free_name(call_id, chars, taken)
        taken.add(names[call_id])
    return [_with(message, names) for message in messages]


def _free_name(call_id: str, chars: int, taken: set[str]) -> str:
    draw = 0
    while (name := _name(call_id, chars, draw)) in taken:  # with nine characters, once in a billion sessions
        draw += 1
    return name


@lru_cache(maxsize=16_384)
def _name(call_id: str, chars: int, draw: int) -> str:
    """The id itself where it fits, else a name made from it; `draw` gives another one each."""
    if not draw and len(call_id) == chars and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.sha256(f"{draw}:{call_id}".encode("utf-8", "replace")).digest(), "big")
    digits: list[str] = []
    for _ in range(chars):
        number, digit = divmod(number, len(_CHARS))
        digits.append(_CHARS[digit])
    return "".join(digits)


def _ids(content: Iterable[Block]) -> Iterable[str]:
    return (block.id for block in content if isinstance(block, Call | Result))


def _with(message: Message, names: dict[str, str]) -> Message:
    own = tuple(_ids(message.sent))
    if all(names[call_id] == call_id for call_id in own):
        return message
    given = tuple(names[call_id] for call_id in own)
    known = _renamed.get(message)
    if known is not None and known[0] == given:
        return known[1]
    content = tuple(replace(b, id=names[b.id]) if isinstance(b, Call | Result) else b for b in message.sent)
    wire = {name: value for name, value in (message.wire or {}).items() if name != "content"} or None
    made = replace(message, content=content, wire=wire)
    _renamed[message] = given, made
    return made
