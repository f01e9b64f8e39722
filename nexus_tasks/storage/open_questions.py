"""Questions to the model that are open: asked, and nothing committed of the answer yet.

While a run waits for its answer, or dies with it, more arrives. Asked about that as well, the question would be another
one, and the answer that was paid for would fit nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import OpenQuestion


def find(tx: Transaction, namespace_id: int, purpose: str, about: int) -> dict[str, Any] | None:
    """What an earlier run has asked about, or ``None``."""
    return tx.scalar(
        select(OpenQuestion.question).where(
            OpenQuestion.namespace_id == namespace_id, OpenQuestion.purpose == purpose, OpenQuestion.about == about
        )
    )


def note(tx: Transaction, namespace_id: int, purpose: str, about: int, question: Mapping[str, Any]) -> None:
    """Note what is about to be asked about; it takes the place of what was noted before."""
    tx.execute(
        upsert(OpenQuestion)
        .values(namespace_id=namespace_id, purpose=purpose, about=about, question=dict(question))
        .on_conflict_do_update(constraint="pk_open_questions", set_={"question": dict(question)})
    )


def close(tx: Transaction, namespace_id: int, purpose: str, about: int) -> None:
    """Forget a question, in the transaction that holds what was made of its answer."""
    tx.execute(
        delete(OpenQuestion).where(
            OpenQuestion.namespace_id == namespace_id, OpenQuestion.purpose == purpose, OpenQuestion.about == about
        )
    )
