"""Undo one reflection: reverse every change that the reflection made."""

from __future__ import annotations

from nexus_tasks.errors import NotFound, UndoRefused
from nexus_tasks.storage import perspectives, undo_correction
from nexus_tasks.storage import undo as undoing
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import PerspectiveRow, ReflectionRow
from nexus_tasks.storage.undo_correction import WorkAgain
from nexus_tasks.types import UndoReceipt


def undo(tx: Transaction, namespace_id: int, reflection: int | str) -> tuple[UndoReceipt, WorkAgain]:
    """Reverse a reflection.

    Args:
        reflection: the reflection's number, or the id of the job that made the reflection.

    Returns:
        The ids of the changed memories, and the jobs to ask for after the commit. The status is ``unchanged`` when the
        reflection was undone before.

    Raises:
        NotFound: the namespace has no such reflection.
        UndoRefused: later work builds on the reflection.
    """
    found = _find(tx, namespace_id, reflection)
    perspective = tx.get(PerspectiveRow, found.perspective_id)
    if perspective is not None:
        perspectives.lock(tx, namespace_id, perspective.observer, [perspective.subject])
    # Another transaction may have undone or erased the reflection before this transaction got the lock.
    found = _find(tx, namespace_id, found.id)
    assert perspective is not None
    undone_before, again = found.undone_at is not None, WorkAgain()
    if undone_before:
        changed = undoing.UndoResult(removed=(), revived=(), restored=())
    else:
        _refuse_if_built_on(tx, found.id)
        again = undo_correction.take_back(tx, found.id)
        changed = undoing.reverse(tx, found)
    receipt = UndoReceipt(
        reflection=found.id,
        observer=perspective.observer,
        subject=perspective.subject,
        status="unchanged" if undone_before else "undone",
        removed=changed.removed,
        revived=changed.revived,
        restored=changed.restored,
    )
    return receipt, again


def _find(tx: Transaction, namespace_id: int, reflection: int | str) -> ReflectionRow:
    found = undoing.find_reflection(tx, namespace_id, reflection)
    if found is None:
        raise NotFound(
            f"There is no reflection {reflection!r} here.",
            remedy="`nexus memories show ID` and `nexus jobs show JOB` name the reflection that made a memory.",
        )
    return found


def _refuse_if_built_on(tx: Transaction, reflection_id: int) -> None:
    if rivals := undoing.facts_said_again(tx, reflection_id):
        said = ", ".join(f"m{old} (m{since} says the same)" for old, since in rivals)
        raise UndoRefused(
            f"Reflection {reflection_id} superseded facts that a later message said again: {said}.",
            remedy="These facts are already valid again. To undo the other changes, forget the newer memories first.",
        )
    if resting := undoing.resting_on(tx, reflection_id):
        named = ", ".join(f"m{i} (reflection {number})" if number else f"m{i}" for i, number in resting)
        raise UndoRefused(
            f"These memories build on reflection {reflection_id}: {named}.",
            remedy="First undo the reflections that are named here, or forget the memories.",
        )
