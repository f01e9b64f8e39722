"""reflect_perspective and reflect_namespace: how new facts relate to old facts, and what several facts show together.

A reflection takes these steps: ``new_facts`` chooses the facts, ``propose`` asks the model, ``perspective`` checks how
much would change, ``apply`` writes the changes, and ``perspective`` commits. ``review`` holds a plan that changes too
much, ``dry_run`` shows what a dream would do, ``undo`` reverses one reflection.
"""

from nexus_tasks.cognition.reflect.dry_run import plan_dream
from nexus_tasks.cognition.reflect.perspective import reflect_namespace, reflect_perspective
from nexus_tasks.cognition.reflect.review import release
from nexus_tasks.cognition.reflect.undo import undo

__all__ = ["plan_dream", "reflect_namespace", "reflect_perspective", "release", "undo"]
