"""Context: a block of memories for an agent's prompt, under a hard token bound, every line with a citation.

``assemble`` chooses the memories, ``token_budget`` holds the bound, ``render`` gives the block its form, ``counting``
replaces the estimated tokens by counted ones.

It only reads, and never calls a model. Prompt caches need the same bytes from the same call, so recency is measured
from the newest memory, not from the clock.
"""

from nexus_tasks.cognition.context.assemble import ContextRequest, assemble
from nexus_tasks.cognition.context.counting import fit_to_count
from nexus_tasks.cognition.context.render import Format, render_as

__all__ = ["ContextRequest", "Format", "assemble", "fit_to_count", "render_as"]
