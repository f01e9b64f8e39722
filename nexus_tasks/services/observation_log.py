"""Show a session's observation log, undo a condensation of the log, and clear its task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nexus_tasks.cognition.observing import activation
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NotFound
from nexus_tasks.llm import observation_log
from nexus_tasks.storage import messages, namespaces, observations, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import ObservationGeneration, ObservationLog
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import EarlierLog, ObservationText, check_name, check_namespace


def show(deployment: Deployment, namespace: str, session_key: str, *, generation: int | None) -> ObservationText:
    """See :meth:`nexus_tasks.client.Nexus.observation_log`."""
    with deployment.database.transaction() as tx:
        found = _find(tx, namespace, session_key)
        return _shown(tx, session_key, found, observations.earlier(tx, found.session_id), generation)


def undo(deployment: Deployment, namespace: str, session_key: str) -> ObservationText:
    """See :meth:`nexus_tasks.client.Nexus.undo_condensation`."""
    with deployment.database.transaction() as tx:
        found = _find(tx, namespace, session_key, lock=True)
        kept = observations.earlier(tx, found.session_id)
        if not kept:
            raise NotFound(
                f"Nothing that a condensation of the log of {session_key!r} replaced is kept.",
                remedy="A condensation can be undone for seven days, until a message that the log covers is erased.",
            )
        last, _ = kept[0]
        since = observation_log.text_after(found.observations, last.condensed_length)
        text = observation_log.append(last.observations, since)
        generation = found.generation + 1
        observations.activate(
            tx,
            found,
            generation=generation,
            rewritten=generation,
            observations=text,
            # Otherwise a job would condense the log again at once.
            reflect_from_tokens=math.ceil(activation.PATIENCE * estimate_tokens(text)),
        )
        observations.drop_reflection(tx, found.session_id)
        observations.drop_earlier(tx, found.session_id, last.generation)
        return _shown(tx, session_key, _find(tx, namespace, session_key), kept[1:], None)


def clear_task(deployment: Deployment, namespace: str, session_key: str) -> bool:
    """See :meth:`nexus_tasks.client.Nexus.clear_task`."""
    with deployment.database.transaction() as tx:
        return observations.clear_task(tx, _find(tx, namespace, session_key, lock=True))


def _find(tx: Transaction, namespace: str, session_key: str, *, lock: bool = False) -> ObservationLog:
    known = namespaces.get(tx, check_namespace(namespace))
    session = sessions.get(tx, known.id, check_name("session_key", session_key))
    found = observations.find_log(tx, session.id, lock=lock)
    if found is None:
        raise NotFound(
            f"The session {session_key!r} was never observed.",
            remedy="Turn observation on with `nexus namespaces set NS --observe`, or ingest with observe=True.",
        )
    return found


def _shown(
    tx: Transaction,
    session_key: str,
    found: ObservationLog,
    kept: Sequence[tuple[ObservationGeneration, int]],
    generation: int | None,
) -> ObservationText:
    shown: ObservationLog | ObservationGeneration = found
    if generation is not None:
        chosen = [one for one, _ in kept if one.generation == generation]
        if not chosen:
            raise NotFound(
                f"The text that generation {generation} of the log of {session_key!r} replaced is not kept.",
                remedy="`nexus sessions log KEY --namespace NS` lists the earlier texts.",
            )
        [shown] = chosen
    cited = messages.cited(tx, found.session_id, observation_log.sources(shown.observations))
    return ObservationText(
        session_key=session_key,
        generation=found.generation,
        text=observation_log.cited(shown.observations, {seq: one.id for seq, one in cited.items()}),
        observed_through=shown.observed_through_seq,
        current_task=found.current_task,
        current_task_at=found.current_task_at,
        suggested_response=found.suggested_response,
        suggested_response_at=found.suggested_response_at,
        earlier=tuple(
            EarlierLog(generation=one.generation, replaced_at=one.created_at, tokens=-(-characters // 4))
            for one, characters in kept
        ),
    )
