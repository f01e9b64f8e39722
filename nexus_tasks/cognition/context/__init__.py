"""Context: what an agent should know now, under a hard token bound, every line with a citation.

Reads only, and never calls a model. The same call twice gives the same bytes, because prompt caches depend on it:
recency is measured from the newest memory, not from the clock.
"""

from nexus_tasks.cognition.context.assemble import ContextRequest, assemble
from nexus_tasks.cognition.context.counting import fit_to_count
from nexus_tasks.cognition.context.render import Format, render_as

__all__ = ["ContextRequest", "Format", "assemble", "fit_to_count", "render_as"]
