"""Context: what an agent should know now, under a hard token bound, every line with a citation.

Reads only, and never calls a model. The same call twice gives the same bytes, because prompt caches depend on it:
recency is measured from the newest memory, not from the clock.
"""

from nexus_tasks.cognition.context.assemble import Ask, assemble
from nexus_tasks.cognition.context.counting import counted
from nexus_tasks.cognition.context.render import Format, rendered

__all__ = ["Ask", "Format", "assemble", "counted", "rendered"]
