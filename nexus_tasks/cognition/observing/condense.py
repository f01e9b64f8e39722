"""The job reflect_observations: prepare a shorter version of an observation log, before the log is too long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.job_context import GAVE_UP, JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.observing import activation
from nexus_tasks.cognition.observing.erasures import discarding_erased_notes
from nexus_tasks.cognition.observing.message_text import one_line
from nexus_tasks.cognition.observing.sources import with_sources
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import Condensed, CondenseMaterial
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.settings import Settings
from nexus_tasks.storage import messages, observations, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import ObservationLog
from nexus_tasks.storage.observations import ObservedText
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import JobOutcome, clean_text

# The lengths that the first, second and third attempt ask for, as multiples of the longest that is short enough. Chosen
# by hand, not measured.
ASKED = (1.0, 0.67, 0.47)
SHORTEST = 0.25  # no request asks for less than this share of a log. A longer log takes several runs.


def condense(resources: Resources, job: JobContext, session_key: str) -> tuple[JobOutcome, bool]:
    """Prepare a shorter version of a session's log. When the log is too long, replace it with this version.

    Returns:
        The outcome, and whether another run is due because the log is still too long.

    Raises:
        InvalidAnswer: an answer is malformed, or most of its lines are repetitions.
    """
    settings = resources.settings
    with resources.database.transaction() as tx:
        session = sessions.find(tx, job.namespace_id, session_key)
        seen = observations.find_log(tx, session.id, lock=True) if session else None
        if seen is None:
            return job.commit(tx, JobOutcome(status="gone")), False
        if seen.reflecting == "dead":
            return job.commit(tx, GAVE_UP), False
        seen = _activated(tx, settings, seen)
        if not is_wanted(tx, settings, seen):
            observations.settle(tx, seen.session_id, "reflecting")
            return job.commit(tx, JobOutcome(status="skipped")), False
        sources = messages.cited_ids(tx, seen.session_id, observation_log.sources(seen.observations))
    with discarding_erased_notes(resources, job, seen):
        noted = _shorter(resources, job, session_key, seen.observations, sources)
    with resources.database.transaction() as tx:
        found = observations.find_log(tx, seen.session_id, lock=True)
        if found is None:
            return job.commit(tx, JobOutcome(status="gone")), False
        if noted is None and found.erasures != seen.erasures:
            outcome = JobOutcome(status="superseded")  # a message was erased meanwhile: the log may be empty
        elif noted is None:
            from_tokens = math.ceil(activation.PATIENCE * estimate_tokens(seen.observations))
            observations.delay_reflection(tx, seen.session_id, from_tokens)
            outcome = JobOutcome(status="unchanged", details={"log_tokens": estimate_tokens(seen.observations)})
        elif observations.store_reflection(
            tx, seen, len(seen.observations), replace(noted, said_at=_time_of_the_log(tx, seen))
        ):
            lengths = {
                "from_tokens": estimate_tokens(seen.observations),
                "to_tokens": estimate_tokens(noted.observations),
            }
            outcome = JobOutcome(status="completed", details=lengths)
        else:
            outcome = JobOutcome(status="superseded")
        more = is_wanted(tx, settings, _activated(tx, settings, found))
        if not more:
            observations.settle(tx, seen.session_id, "reflecting")
        return job.commit(tx, outcome), more


def is_wanted(tx: Transaction, settings: Settings, found: ObservationLog) -> bool:
    """Whether a job should prepare a shorter version of the log."""
    due = activation.is_condensing_due(settings, found)
    return due and observations.usable_reflection(tx, found) is None


def _time_of_the_log(tx: Transaction, seen: ObservationLog) -> datetime | None:
    """The time of the last message that the log covers."""
    last = messages.window(tx, seen.session_id, 0, seen.observed_through_seq, limit=1)
    return last[0].occurred_at if last else None


def _activated(tx: Transaction, settings: Settings, found: ObservationLog) -> ObservationLog:
    """The locked log, after the shorter version that is due has replaced it."""
    due = activation.due_update(tx, settings, found, tail=())
    if due:
        activation.apply_update(tx, due)
    again = observations.find_log(tx, found.session_id)
    assert again is not None
    return again


def _shorter(
    resources: Resources, job: JobContext, session_key: str, log: str, sources: frozenset[int]
) -> ObservedText | None:
    """A shorter version of the whole log, or ``None`` when no answer of the model is shorter.

    A log that is longer than one answer may be is condensed in parts.

    Args:
        sources: ids of the messages that the log cites.
    """
    settings, whole = resources.settings, estimate_tokens(log)
    # A log beyond the bound is condensed so far that it is below the bound at once, if its notes allow it.
    share = max(activation.TARGET * min(1.0, settings.reflection_observation_tokens / whole), SHORTEST)
    text, rest = "", log
    answer: Condensed | None = None
    while rest:
        part = observation_log.first_lines(rest, settings.max_tokens_condense)
        rest = observation_log.text_after(rest, len(part))
        target = math.floor(share * estimate_tokens(part))
        shorter, answer = shorter_part(resources, job, session_key, part, target, sources=sources)
        text = observation_log.append(text, shorter)
    if estimate_tokens(text) >= whole:
        return None
    return ObservedText(
        observations=text,
        current_task=one_line(answer.current_task if answer else ""),  # the last part has the newest notes
        suggested_response=one_line(answer.suggested_response if answer else ""),
        made_by=resources.model.model_for("condense"),
    )


def shorter_part(
    resources: Resources,
    job: JobContext,
    session_key: str,
    part: str,
    target: int,
    *,
    shares: Sequence[float] = ASKED,
    sources: frozenset[int] = frozenset(),
) -> tuple[str, Condensed | None]:
    """A shorter version of notes: the first answer that has at most ``target`` tokens, else the shortest answer.

    When no answer is shorter than the part, the result is the part.

    Args:
        shares: the length that each attempt asks for, as a multiple of ``target``.
        sources: ids of the messages that the notes cite, unless the job has shown them to the model already.

    Raises:
        InvalidAnswer: an answer is malformed, or most of its lines are repetitions.
    """
    best: tuple[str, Condensed | None] = part, None
    shown = {seq: seq for seq in observation_log.sources(part)}
    for share in shares:
        answer = ask(resources, job, build_request(session_key, part, math.floor(share * target), sources))
        days = with_sources(answer.condensed, shown)
        text = prompts.inert(clean_text(observation_log.format_days(days)))
        if text and estimate_tokens(text) < estimate_tokens(best[0]):
            best = text, answer
        if best[1] and estimate_tokens(best[0]) <= target:
            break
    return best


def build_request(
    session_key: str, covered: str, target: int, sources: frozenset[int] = frozenset()
) -> ModelRequest[Condensed]:
    """The model request for writing notes again, within ``target`` tokens. ``sources`` are ids of what they cite."""
    return ModelRequest(
        purpose="condense",
        instructions=prompts.instructions("condense"),
        transcript=f"<notes>\n{prompts.inert(covered)}\n</notes>",
        question=(
            f"{prompts.names(session=session_key)}\n"
            f"Write the notes of this session again, within {target} tokens ({4 * target} characters)."
        ),
        answer=Condensed,
        material=CondenseMaterial(log=covered, target_tokens=target, noted=sources),
        shared=False,
    )
