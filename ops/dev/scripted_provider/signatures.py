"""Signatures of thinking, which say by themselves whether a block comes back as it was sent.

Nothing is remembered: a signature holds the issuer, the place among the thinking blocks of its reply, their number,
a digest of everything that came before the reply, and a keyed digest over all this and the text. So a server that was
restarted still knows its own blocks, and another issuer's are foreign to it.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

from ops.dev.scripted_provider.asked import Asked, Json
from ops.dev.scripted_provider.script import Redacted, Reply, Thinking


@dataclass(frozen=True, slots=True)
class Signature:
    """What one signature says of its block: the `index`th of `count` thinking blocks of a reply to `prefix`."""

    index: int
    count: int
    prefix: str


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs for one issuer. Two servers with different issuers refuse each other's thinking."""

    issuer: str = "scripted"

    def sign(self, asked: Asked, reply: Reply) -> dict[int, str]:
        """The signatures (for redacted thinking: the data) of a reply, by the index of their part."""
        at = [i for i, p in enumerate(reply.parts) if isinstance(p, Thinking | Redacted)]
        if not at:
            return {}
        before = prefix_digest(asked.body, cast("list[Json]", asked.body.get("messages") or []))
        signed: dict[int, str] = {}
        for n, i in enumerate(at):
            match reply.parts[i]:
                case Thinking(text):
                    signed[i] = self._pack([n, len(at), before, ""], text)
                case Redacted(secret):
                    signed[i] = self._pack([n, len(at), before, secret], "")
                case _:
                    pass
        return signed

    def seal(self, item_id: str, secret: str) -> str:
        """The encrypted content of a reasoning item."""
        return self._pack([item_id, secret], "")

    def unseal(self, sealed: str) -> str | None:
        """The id of the item that was sealed so, None if that was not done here or was changed since."""
        try:
            item_id, secret, stamp, mac = cast("list[Any]", json.loads(urlsafe_b64decode(sealed.encode())))
        except (ValueError, TypeError):
            return None
        return item_id if stamp == self._stamp([item_id, secret]) and mac == self._mac(stamp, "") else None

    def read(self, signature: str, seen: str) -> Signature | str:
        """What a signature says, or why it is refused: "foreign" (not made here) or "changed" (other text)."""
        try:
            values = cast("list[Any]", json.loads(urlsafe_b64decode(signature.encode())))
            index, count, prefix, hidden, stamp, mac = values
        except (ValueError, TypeError):
            return "foreign"
        if stamp != self._stamp([index, count, prefix, hidden]):
            return "foreign"
        return Signature(index, count, prefix) if mac == self._mac(stamp, seen) else "changed"

    def _pack(self, facts: list[Any], seen: str) -> str:
        stamp = self._stamp(facts)
        return urlsafe_b64encode(_canonical([*facts, stamp, self._mac(stamp, seen)])).decode()

    def _stamp(self, facts: list[Any]) -> str:
        """Says who issued these facts; it leaves the text out, which tells changed text from a foreign block."""
        return blake2b(_canonical(facts), key=self._key, digest_size=8).hexdigest()

    def _mac(self, stamp: str, seen: str) -> str:
        return blake2b(_canonical([stamp, seen]), key=self._key, digest_size=8).hexdigest()

    @property
    def _key(self) -> bytes:
        return self.issuer.encode()[:64]


def prefix_digest(body: Json, messages: list[Json]) -> str:
    """A digest of system prompt, tools and `messages`; cache marks and the form of plain text do not count."""
    whole = [
        _plain(_blocks({"content": body.get("system")})),
        _plain(body.get("tools")),
        [_plain_message(m) for m in _merged(messages)],
    ]
    return blake2b(_canonical(whole), digest_size=8).hexdigest()


def _merged(messages: list[Json]) -> list[Json]:
    """Messages of one role in a row are one message to the provider."""
    merged: list[Json] = []
    for message in messages:
        if merged and merged[-1].get("role") == message.get("role"):
            last = merged[-1]
            merged[-1] = {"role": last["role"], "content": [*_blocks(last), *_blocks(message)]}
        else:
            merged.append(message)
    return merged


def _plain_message(message: Json) -> list[Any]:
    return [message.get("role"), _plain(_blocks(message))]


def _blocks(message: Json) -> list[Any]:
    content = message.get("content")
    return cast("list[Any]", content) if isinstance(content, list) else [{"type": "text", "text": content}]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in cast("Json", value).items() if k != "cache_control"}
    if isinstance(value, list):
        return [_plain(v) for v in cast("list[Any]", value)]
    return value


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
