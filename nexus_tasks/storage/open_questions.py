"""Open questions: the ids of the memories that a run asks the model about, kept until the run commits.

New facts and messages may arrive while a run waits for the model's answer. If the run dies, the next run of the job
must ask about the same memories. A request about other memories has another hash. The next run would then not find the
saved answer of the first call, and would pay for a second call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import OpenQuestion


def find(tx: Transaction, namespace_id: int, purpose: str, about: int) -> dict[str, Any] | None:
    """The memory ids that an earlier run asked about, or ``None``.

    Args:
        purpose: ``reflect`` or ``digest``.
        about: for ``reflect`` the id of the perspective (an observer's memories about one subject), for ``digest`` the
            id of the session.
    """
    return tx.scalar(
        select(OpenQuestion.question).where(
            OpenQuestion.namespace_id == namespace_id, OpenQuestion.purpose == purpose, OpenQuestion.about == about
        )
    )


def note(tx: Transaction, namespace_id: int, purpose: str, about: int, question: Mapping[str, Any]) -> None:
    """Store a question before the model is asked. A stored question with the same purpose and ``about`` is replaced."""
    tx.execute(
        upsert(OpenQuestion)
        .values(namespace_id=namespace_id, purpose=purpose, about=about, question=dict(question))
        .on_conflict_do_update(constraint="pk_open_questions", set_={"question": dict(question)})
    )


def close(tx: Transaction, namespace_id: int, purpose: str, about: int) -> None:
    """Delete a question. Call this function in the transaction that commits the effects of the answer."""
    tx.execute(
        delete(OpenQuestion).where(
            OpenQuestion.namespace_id == namespace_id, OpenQuestion.purpose == purpose, OpenQuestion.about == about
        )
    )
