"""What the next digest of a session covers: the facts and messages that are new since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nexus_tasks.llm.answers import Line
from nexus_tasks.storage import derivations, digests, messages
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, Session


@dataclass(frozen=True, kw_only=True)
class Window:
    """What the next digest of a session covers."""

    session: Session
    after: int
    generation: int
    requests: int  # digest requests up to here are satisfied by it
    previous: dict[str, str]  # the digests so far, by kind
    lines: tuple[Line, ...]
    given_up: frozenset[int]  # of the lines, the messages that no facts could be had from
    sources: tuple[int, ...]

    def without_given_up(self) -> Window:
        """The window without the messages that may make the model stumble here as well."""
        return replace(
            self,
            lines=tuple(line for line in self.lines if line.id not in self.given_up),
            sources=tuple(source for source in self.sources if source not in self.given_up),
        )


def window(tx: Transaction, session: Session, requests: int, *, rebuild: bool) -> Window:
    """Everything since the last digest, or (``rebuild``) since the beginning, in the order of the conversation."""
    after = 0 if rebuild else session.digest_end_seq
    previous = {} if rebuild else digests.latest(tx, session.id)
    found = digests.window_facts(tx, session.id, after, session.last_seq)
    raw = messages.window(tx, session.id, after, session.last_seq)
    raw_ids = [message.id for message in raw]
    # Messages that are not derived yet, or gave no fact at all in a window without any, go in as they are.
    derived = derivations.derived(tx, raw_ids) if found else set()
    lines = [
        *((fact.seq, _fact_line(fact)) for fact in _each_once(found)),
        *((message.seq or 0, _raw_line(message)) for message in raw if message.id not in derived),
    ]
    lines.sort(key=lambda pair: pair[0])
    rests_on = [*(fact.memory.id for fact in found), *(i for i in raw_ids if i not in derived)]
    return Window(
        session=session,
        after=after,
        generation=session.digest_generation + rebuild,
        requests=requests,
        previous={kind: memory.content for kind, memory in previous.items()},
        lines=tuple(line for _, line in lines),
        given_up=frozenset(derivations.given_up(tx, raw_ids)),
        sources=(*rests_on, *(memory.id for memory in previous.values())),
    )


def _each_once(found: Sequence[digests.WindowFact]) -> list[digests.WindowFact]:
    """The facts without those that another observer holds too."""
    first: dict[tuple[str, str | None], digests.WindowFact] = {}
    for fact in found:
        first.setdefault((fact.subject, fact.memory.content_key), fact)
    return list(first.values())


def _fact_line(fact: digests.WindowFact) -> Line:
    memory = fact.memory
    return Line(id=memory.id, author=fact.subject, role="fact", content=memory.content, occurred_at=memory.occurred_at)


def _raw_line(message: Memory) -> Line:
    return Line(
        id=message.id,
        author=message.author or "user",
        role=message.role or "user",
        content=message.content,
        occurred_at=message.occurred_at,
    )
