"""The jobs reflect_perspective and reflect_namespace: relate new facts to old facts, and find insights.

An insight is a statement that several facts support together. A reflection takes these steps:

1. ``new_facts`` chooses the facts.
2. ``propose`` asks the model.
3. ``perspective`` checks how much would change.
4. ``apply`` writes the changes.
5. ``perspective`` commits.

When a reflection would change too much, ``review`` stores its plan until a person releases or drops the plan.
``dry_run`` shows the reflections that a dream would make. ``undo`` reverses one reflection.
"""

from nexus_tasks.cognition.reflect.dry_run import plan_dream
from nexus_tasks.cognition.reflect.perspective import reflect_namespace, reflect_perspective
from nexus_tasks.cognition.reflect.review import release
from nexus_tasks.cognition.reflect.undo import undo

__all__ = ["plan_dream", "reflect_namespace", "reflect_perspective", "release", "undo"]
