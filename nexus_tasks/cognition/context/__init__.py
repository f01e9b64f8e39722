"""Context: a block of memories for an agent's prompt, under a hard token bound, with a citation in every line.

``assemble`` chooses the memories, and ``by_query`` those that fit a query. ``profile`` chooses what to know about a
person at any time. ``token_budget`` keeps the bound. ``render`` renders the block as text, as messages for a model or
as JSON. ``counting`` replaces estimated tokens by counted tokens.

This package only reads, and asks no model for text. As long as the memories do not change, the same request gives the
same bytes, so a prompt cache stays valid. For this reason recency is measured from the newest memory, not from the
clock.
"""

from nexus_tasks.cognition.context.assemble import ContextRequest, assemble, choose
from nexus_tasks.cognition.context.counting import fit_to_count
from nexus_tasks.cognition.context.profile import make_profile
from nexus_tasks.cognition.context.render import render_as

__all__ = ["ContextRequest", "assemble", "choose", "fit_to_count", "make_profile", "render_as"]
