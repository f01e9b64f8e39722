"""The job reflect_observations: prepare a shorter version of an observation log, before the log is too long."""

from __future__ import annotations

import math

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.job_context import GAVE_UP, JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.observing.observe import one_line
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import Condensed, CondenseMaterial
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.settings import Settings
from nexus_tasks.storage import observations, sessions
from nexus_tasks.storage.models import ObservationLog
from nexus_tasks.storage.observations import ObservedText
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import JobOutcome, clean_text

# All these lengths are multiples of the log's length. Chosen by hand, not measured.
TARGET = 0.75  # an answer of at most this length ends the attempts
ASKED = (0.75, 0.5, 0.35)  # the lengths that the first, second and third attempt ask for
PATIENCE = 1.25  # when all attempts miss the target, the next job waits until the log has grown to this length


def is_due(settings: Settings, found: ObservationLog) -> bool:
    """Whether the log is long enough that a job should prepare a shorter version."""
    least = settings.reflection_buffer_activation * settings.reflection_observation_tokens
    return estimate_tokens(found.observations) >= max(least, found.reflect_from_tokens, 1)


def condense(resources: Resources, job: JobContext, session_key: str) -> JobOutcome:
    """Store a shorter version of a session's log. A later read of the session replaces the log with this version.

    Raises:
        InvalidAnswer: an answer is malformed, or most of its lines are repetitions.
    """
    with resources.database.transaction() as tx:
        session = sessions.find(tx, job.namespace_id, session_key)
        seen = observations.find_log(tx, session.id, lock=True) if session else None
        if seen is None:
            return job.commit(tx, JobOutcome(status="gone"))
        if seen.reflecting == "dead":
            return job.commit(tx, GAVE_UP)
        if observations.usable_reflection(tx, seen) or not is_due(resources.settings, seen):
            observations.settle(tx, seen.session_id, "reflecting")
            return job.commit(tx, JobOutcome(status="skipped"))
    covered = observation_log.first_lines(seen.observations, resources.settings.max_tokens_condense)
    noted = _shorter(resources, job, session_key, covered)
    with resources.database.transaction() as tx:
        if noted is None:
            observations.delay_reflection(tx, seen.session_id, math.ceil(PATIENCE * estimate_tokens(seen.observations)))
            outcome = JobOutcome(status="unchanged", details={"log_tokens": estimate_tokens(seen.observations)})
        elif observations.store_reflection(tx, seen, len(covered), noted):
            lengths = {"from_tokens": estimate_tokens(covered), "to_tokens": estimate_tokens(noted.observations)}
            outcome = JobOutcome(status="completed", details=lengths)
        else:
            outcome = JobOutcome(status="superseded")
        observations.settle(tx, seen.session_id, "reflecting")
        return job.commit(tx, outcome)


def _shorter(resources: Resources, job: JobContext, session_key: str, covered: str) -> ObservedText | None:
    """The first answer that is short enough, else the shortest answer.

    The result is ``None`` when no answer is shorter than the log.
    """
    best: ObservedText | None = None
    whole = estimate_tokens(covered)
    for share in ASKED:
        answer = ask(resources, job, _request(session_key, covered, math.floor(share * whole)))
        text = prompts.inert(clean_text(observation_log.format_days(answer.condensed)))
        if text and estimate_tokens(text) < (estimate_tokens(best.observations) if best else whole):
            best = ObservedText(
                observations=text,
                current_task=one_line(answer.current_task),
                suggested_response=one_line(answer.suggested_response),
                made_by=resources.model.model_for("condense"),
            )
        if best and estimate_tokens(best.observations) <= TARGET * whole:
            break
    return best


def _request(session_key: str, covered: str, target: int) -> ModelRequest[Condensed]:
    return ModelRequest(
        purpose="condense",
        instructions=prompts.instructions("condense"),
        transcript=f"<notes>\n{prompts.inert(covered)}\n</notes>",
        question=(
            f"{prompts.names(session=session_key)}\n"
            f"Write the notes of this session again, within {target} tokens ({4 * target} characters)."
        ),
        answer=Condensed,
        material=CondenseMaterial(log=covered, target_tokens=target),
        shared=False,
    )
