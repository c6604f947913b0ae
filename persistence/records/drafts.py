"""How the drafts of a mixture are marked in what is stored."""

from __future__ import annotations

# In the `wire` of a message: the "provider:model" that gave this draft, or none.
DRAFT = "draft"
# Among a turn's counters of remedies: one bit for each reference whose draft is still out.
OPEN = "drafts_open"
