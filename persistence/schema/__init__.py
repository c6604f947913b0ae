"""Every table: `owners`, `turns`, and the `journal` of what turns leave behind.

tenants own everything. An agents row is one immutable configuration. A sessions row is a conversation: one system
prompt, one append-only list of messages, many turns. A turns row is the work that one request starts, and the queue of
record: `queued -> running -> waiting -> queued`, and from each of them to an ending. Its columns stand in the order in
which they stop changing: what a checkpoint writes comes last and together, which keeps its WAL small.
A batches row is many turns made from one file, `filling -> running`, and from there to an ending or, resumed, back;
batch_events is what happened to it.
tool_calls, model_calls, events, messages and deliveries hang on their turn and are written by its fenced statement
alone, which selects from the turn's row: a foreign key there could not fail and would lock a row for every insert.
The inbox is written by a statement that locks the turn's row. workers is who is alive.
"""

from persistence.schema import journal, owners, turns
from persistence.schema.columns import metadata

__all__ = ["journal", "metadata", "owners", "turns"]
