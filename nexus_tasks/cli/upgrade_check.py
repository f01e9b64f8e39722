"""``nexus db upgrade --check``: say what an upgrade of the schema would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_tasks.cli import words
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.output import emit

if TYPE_CHECKING:
    from nexus_tasks.storage.upgrade_plan import MigrationStep, UpgradePlan


def report(plan: UpgradePlan, *, json: bool) -> None:
    """Print the missing migrations, how long they take, what they lock, and whether workers may run meanwhile."""
    if json:
        emit(plan.to_dict() | {"seconds": plan.seconds, "old_workers": plan.old_workers})
        return
    if not plan.steps:
        print(f"The database is up to date (schema {plan.needed}). Nothing would change.")
        return
    missing = words.count(len(plan.steps), "migration")
    print(f"{missing} from {plan.found or 'empty'} to {plan.needed}, {plan.memories:,} memories.\n")
    rows = [(step.revision, step.says, _lock(step), ", ".join(step.rewrites), _seconds(step)) for step in plan.steps]
    table(("migration", "what it does", "locks", "rewrites", "about"), rows, elastic="what it does", empty="")
    print(f"\nAll together about {plan.seconds:,.0f} s. " + ("" if plan.old_workers else _STOP) + _GOES_ON)


_STOP = "Stop the workers of the release before first: they may not run meanwhile. "
_GOES_ON = "Each migration commits by itself; after an error run the command again, and it goes on where it was."


def _lock(step: MigrationStep) -> str:
    return "; ".join(f"{name}: {who} wait" for name, who in step.locks.items()) or "for a moment"


def _seconds(step: MigrationStep) -> str:
    return f"{step.seconds:,.0f} s" if step.seconds >= 1 else "< 1 s"
