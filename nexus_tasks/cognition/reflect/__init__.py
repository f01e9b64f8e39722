"""reflect_perspective and reflect_namespace: how new facts relate to old ones, and what they show together."""

from nexus_tasks.cognition.reflect.review import plans, release
from nexus_tasks.cognition.reflect.run import reflect_namespace, reflect_perspective
from nexus_tasks.cognition.reflect.undo import undo

__all__ = ["plans", "reflect_namespace", "reflect_perspective", "release", "undo"]
