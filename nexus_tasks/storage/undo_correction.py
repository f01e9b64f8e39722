"""What an undo of a correction does beyond the undo of any other reflection.

A correction is a message and a fact, so jobs may have used both since. Digests that tell the correction are deleted and
made again, and so are notes on its message. A message that says the corrected fact too is derived again, because the
undo deletes the fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select, text, update

from nexus_tasks.storage import derivations, digest_requests, extractions, observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Evidence, Memory, SessionRow


@dataclass(frozen=True, kw_only=True)
class WorkAgain:
    """Jobs that the caller asks for after the commit.

    ``derivations`` are pairs of a memory id and an observer. ``digests`` are the keys of sessions.
    """

    derivations: tuple[tuple[int, str], ...] = ()
    digests: tuple[str, ...] = ()


_DIGESTS = text(
    """
    WITH RECURSIVE resting AS (
        SELECT e.memory_id AS id FROM evidence AS e JOIN memories AS made ON made.id = e.source_id
        WHERE made.reflection_id = :reflection AND e.role = 'digested_from'
        UNION
        SELECT e.memory_id FROM resting JOIN evidence AS e ON e.source_id = resting.id AND e.role = 'digested_from'
    )
    SELECT m.id, m.session_id FROM memories AS m JOIN resting USING (id) ORDER BY m.id
    """
)


def take_back(tx: Transaction, reflection_id: int) -> WorkAgain:
    """Delete digests and notes that tell a correction, and let messages that say its fact be derived again.

    Call this function before the correction's memories are deleted. A reflection that is no correction, and a
    correction whose words another fact had already, change nothing here.
    """
    said = tx.execute(
        select(Memory.session_id, Memory.seq).where(Memory.reflection_id == reflection_id, Memory.level == "raw")
    ).all()
    if not said:
        return WorkAgain()
    digests = tx.execute(_DIGESTS, {"reflection": reflection_id}).all()
    touched = {row.session_id for row in (*said, *digests)}
    query = select(SessionRow).where(SessionRow.id.in_(touched)).order_by(SessionRow.id).with_for_update()
    sessions = {session.id: session for session in tx.scalars(query)}
    for row in said:
        observations.erase_covering(tx, sessions[row.session_id], row.seq)
    _delete(tx, [row.id for row in digests])
    again = [sessions[session_id] for session_id in sorted({row.session_id for row in digests})]
    keys = [session.session_key for session in again if _digest_again(tx, session, reflection_id)]
    return WorkAgain(derivations=_derive_again(tx, reflection_id), digests=tuple(keys))


def _delete(tx: Transaction, digests: Sequence[int]) -> None:
    """Delete digests. Those that they have superseded hold until the session is digested again."""
    older = list(tx.scalars(select(Memory.id).where(Memory.superseded_by.in_(digests), Memory.id.not_in(digests))))
    unchanged = {"synchronize_session": False}
    tx.execute(delete(Memory).where(Memory.id.in_(digests)), execution_options=unchanged)
    revived = update(Memory).where(Memory.id.in_(older)).values(valid_to=None, superseded_by=None)
    tx.execute(revived, execution_options=unchanged)


def _digest_again(tx: Transaction, session: SessionRow, reflection_id: int) -> bool:
    """Request a digest of a session from its first message on, unless no message is left."""
    left = select(func.count()).where(
        Memory.session_id == session.id,
        Memory.level == "raw",
        Memory.reflection_id.is_distinct_from(reflection_id),
    )
    return bool(tx.scalar(left)) and digest_requests.add_once(tx, session, "manual_rebuild")


def _derive_again(tx: Transaction, reflection_id: int) -> tuple[tuple[int, str], ...]:
    """Let the other messages on which the correction's fact rests be derived again. Returns their derivations."""
    made = select(Memory.id).where(Memory.reflection_id == reflection_id)
    query = (
        select(Memory.id, Memory.session_id, Memory.seq)
        .join(Evidence, Evidence.source_id == Memory.id)
        .where(Evidence.memory_id.in_(made), Evidence.role == "derived_from", Memory.id.not_in(made))
        .distinct()
    )
    others = tx.execute(query).all()
    ids = sorted({row.id for row in others})
    done = update(Derivation).where(Derivation.memory_id.in_(ids), Derivation.state == "done")
    tx.execute(done.values(state="wanted", batch=None), execution_options={"synchronize_session": False})
    first: dict[int, int] = {}
    for row in others:
        first[row.session_id] = min(row.seq, first.get(row.session_id, row.seq))
    extractions.rewind(tx, "facts", first)
    return tuple(derivations.of_messages(tx, ids, state="wanted"))
