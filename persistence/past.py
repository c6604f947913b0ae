"""The whole stored past of a session, for its model to search and to read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.errors import DataError

from persistence.database import Database
from persistence.errors import Refused
from persistence.records.message import Hit, Message, Role
from persistence.turns import to_message_for_reading

# The words of a block, whatever it is. Postgres does the matching: its engine for patterns does not run away, and a
# statement has a time limit.
_SEARCH = """
SELECT m.seq, m.role, substr(words, greatest(1, strpos(words, found) - %(around)s), %(around)s * 2 + length(found)) AS excerpt
FROM messages m, json_array_elements(m.content) block,
  concat_ws(' ', block ->> 'name', block ->> 'text', block ->> 'arguments', block ->> 'content') words,
  LATERAL (SELECT left((regexp_match(words, '(' || %(pattern)s || ')', 'i'))[1], 200) AS found) hit
WHERE m.session_id = %(session_id)s AND m.seq > %(after_seq)s AND block ->> 'type' IN ('text', 'tool_call', 'tool_result')
  AND found <> ''
ORDER BY m.seq LIMIT %(limit)s"""

_PAGE = """
SELECT seq, turn_id, iteration, role, origin, content, wire FROM messages
WHERE session_id = %(session_id)s AND seq >= %(from_seq)s ORDER BY seq LIMIT %(limit)s"""

_AROUND = 120


@dataclass(frozen=True, slots=True)
class Past:
    """What a session said, compressed or not. Implements `orchestration.ports.Past`."""

    database: Database
    session_id: UUID

    def search(self, pattern: str, *, after_seq: int, limit: int) -> Sequence[Hit]:
        """The first blocks after message `after_seq` in which the regular expression is found, whatever its case.

        Raises Refused, with Postgres's own words, for what is no regular expression.
        """
        params = {"session_id": self.session_id, "pattern": pattern, "after_seq": after_seq, "limit": limit}
        try:
            rows = self.database.rows(_SEARCH, params | {"around": _AROUND})
        except DataError as error:
            raise Refused(str(error).splitlines()[0]) from error
        return [Hit(r["seq"], Role(r["role"]), r["excerpt"]) for r in rows]

    def page(self, from_seq: int, *, limit: int) -> Sequence[Message]:
        """Up to `limit` messages from number `from_seq` on."""
        params = {"session_id": self.session_id, "from_seq": from_seq, "limit": limit}
        return [to_message_for_reading(r) for r in self.database.rows(_PAGE, params)]
