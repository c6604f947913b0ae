"""Live text between a worker and those who watch: one Redis stream a turn, `perdure:live:<turn_id>`.

Each entry has a `kind`:

    text, thinking   words of an attempt: `attempt` ("<fencing token>-<position>": a higher one is newer and takes the
                     place of all older words of its iteration), `iteration`, `n` (which attempt it is), `model`, `at`
                     (how many characters came before), `text`
    end              no more words of that attempt will come; `at` counts those of its text
    progress         what a running tool says: `call_id`, `tool`, `text`
    state            what the turn does meanwhile, as `text`: compressing, backing_off

It is a courtesy: capped, expiring, not written while Redis is away. What a turn said for good is in Postgres.
"""

from uuid import UUID

KEY = "perdure:live:"


def key_of(turn_id: UUID) -> str:
    return f"{KEY}{turn_id}"
