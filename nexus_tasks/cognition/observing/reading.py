"""Reading an observed session: taking into its log what is ready, and saying what is still to be done.

No model is asked here. The log is read first and the messages behind it second: messages are only ever added, so the
two fit together whatever happens in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nexus_tasks.cognition.observing import condense, observe, render
from nexus_tasks.llm import observation_log
from nexus_tasks.settings import Settings
from nexus_tasks.storage import messages, observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, ObservationChunk, ObservationLog, ObservationReflection, SessionRow
from nexus_tasks.text import estimate_tokens

ATTEMPTS = 20  # each failed one means that another reader got further; then what was read last is served as it is


@dataclass(frozen=True, kw_only=True)
class View:
    """A session as it reads now. ``observe_now`` and ``reflect_now``: a bound is passed, and a run would help."""

    session_key: str
    observed: bool
    generation: int = 0
    log: str = ""
    current_task: str = ""
    suggested_response: str = ""
    observed_through: int = 0
    tail: tuple[Memory, ...] = ()
    tail_tokens: int = 0
    ask_observe: bool = False
    ask_reflect: bool = False
    observe_now: bool = False
    reflect_now: bool = False
    gave_up: bool = False

    @property
    def log_tokens(self) -> int:
        """Tokens of the log, estimated."""
        return estimate_tokens(self.log)


def look(tx: Transaction, settings: Settings, session: SessionRow, *, by_default: bool) -> View:
    """The log and the messages behind it; what is ready is taken into the log when it is time."""
    observed = observe.is_observed(session, by_default=by_default)
    found = observations.find_log(tx, session.id)
    if found is None:
        if observed:
            found = observations.ensure_log(tx, session)
        else:
            said = messages.window(tx, session.id, 0, messages.UNBOUNDED_SEQ)
            return View(session_key=session.session_key, observed=False, tail=tuple(said), tail_tokens=_weight(said))
    for attempt in range(ATTEMPTS):
        tail = messages.window(tx, session.id, found.observed_through_seq, messages.UNBOUNDED_SEQ)
        plan = planned(tx, settings, found, tail) if attempt < ATTEMPTS - 1 else None
        if plan is None:
            break
        apply(tx, plan)  # whether it was us or another reader: the log is a newer one now
        found = observations.find_log(tx, session.id)
        assert found is not None
    return _view(tx, settings, session, found, tail, observed=observed)


def _weight(said: Sequence[Memory]) -> int:
    return sum(map(render.weight, said))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a reader would take into the log that it ``seen``: chunks, or a reflection."""

    seen: ObservationLog
    chunks: tuple[ObservationChunk, ...] = ()
    reflection: ObservationReflection | None = None


def planned(tx: Transaction, settings: Settings, found: ObservationLog, tail: Sequence[Memory]) -> Plan | None:
    """What it is time to take into the log, or ``None``."""
    threshold = min(settings.observation_message_tokens, settings.observation_block_after_tokens)
    if _weight(tail) >= threshold:
        chosen = _prefix(observations.chunks(tx, found.session_id), found.observed_through_seq, settings, tail)
        if chosen:
            return Plan(seen=found, chunks=chosen)
    if estimate_tokens(found.observations) >= settings.reflection_observation_tokens:
        ready = observations.usable_reflection(tx, found)
        if ready:
            return Plan(seen=found, reflection=ready)
    return None


def _prefix(
    ready: Sequence[ObservationChunk], through: int, settings: Settings, tail: Sequence[Memory]
) -> tuple[ObservationChunk, ...]:
    """As many chunks as it takes, each right behind the one before, until what remains is what is kept verbatim."""
    chosen: list[ObservationChunk] = []
    weights = [(message.seq or 0, render.weight(message)) for message in tail]
    for chunk in ready:
        left = sum(weight for seq, weight in weights if seq > through)
        if chunk.from_seq != through + 1 or left <= settings.observation_buffer_tokens:
            break
        chosen.append(chunk)
        through = chunk.through_seq
    return tuple(chosen)


def apply(tx: Transaction, plan: Plan) -> bool:
    """Make the next generation of the log; ``False``, and nothing done, when somebody else has made it."""
    seen = plan.seen
    if plan.reflection:
        return _apply_reflection(tx, seen, plan.reflection)
    text, task, response = seen.observations, seen.current_task, seen.suggested_response
    for chunk in plan.chunks:
        text = observation_log.appended(text, chunk.observations)
        task, response = chunk.current_task or task, chunk.suggested_response or response
    through = plan.chunks[-1].through_seq
    done = observations.activate(
        tx, seen, observations=text, current_task=task, suggested_response=response, observed_through_seq=through
    )
    if done:
        observations.drop_chunks(tx, seen.session_id, through)
    return done


def _apply_reflection(tx: Transaction, seen: ObservationLog, ready: ObservationReflection) -> bool:
    """Put the shorter text in place of what it covers; what was observed since stays behind it."""
    text = observation_log.appended(ready.observations, observation_log.after(seen.observations, ready.covered_length))
    task, response = seen.current_task, seen.suggested_response
    if seen.generation == ready.base_generation:  # else the log has newer ones
        task, response = ready.current_task or task, ready.suggested_response or response
    missed = len(ready.observations) > condense.TARGET * ready.covered_length
    done = observations.activate(
        tx,
        seen,
        observations=text,
        current_task=task,
        suggested_response=response,
        rewritten=seen.generation + 1,
        reflect_from_tokens=math.ceil(condense.PATIENCE * estimate_tokens(text)) if missed else 0,
    )
    if done:
        observations.drop_reflection(tx, seen.session_id)
    return done


def _view(
    tx: Transaction,
    settings: Settings,
    session: SessionRow,
    found: ObservationLog,
    tail: Sequence[Memory],
    *,
    observed: bool,
) -> View:
    weight, length = _weight(tail), estimate_tokens(found.observations)
    reach = observations.last_observed_seq(tx, found)
    pending = [message for message in tail if (message.seq or 0) > reach]
    too_long = weight >= settings.observation_block_after_tokens
    observe_due = observed and observe.is_due(settings, pending, urgent=too_long)
    reflect_due = observed and condense.is_due(settings, found) and not observations.usable_reflection(tx, found)
    return View(
        session_key=session.session_key,
        observed=observed,
        generation=found.generation,
        log=found.observations,
        current_task=found.current_task,
        suggested_response=found.suggested_response,
        observed_through=found.observed_through_seq,
        tail=tuple(tail),
        tail_tokens=weight,
        ask_observe=observe_due and observations.want(tx, session.id, "observing"),
        ask_reflect=reflect_due and observations.want(tx, session.id, "reflecting"),
        observe_now=observe_due and too_long and found.observing != "dead",
        reflect_now=reflect_due and length >= settings.reflection_block_after_tokens and found.reflecting != "dead",
        gave_up=(observe_due and found.observing == "dead") or (reflect_due and found.reflecting == "dead"),
    )
