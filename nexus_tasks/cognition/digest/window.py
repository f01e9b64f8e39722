"""What the next digest of a session covers: the facts and messages that are new since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition.echo import without_echo
from nexus_tasks.llm.answers import Line
from nexus_tasks.storage import digests, open_questions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import MessageText
from nexus_tasks.storage.models import SessionRow

PURPOSE = "digest"


@dataclass(frozen=True, kw_only=True)
class Window:
    """What the next digest of a session covers."""

    session: SessionRow
    after: int
    end: int  # the last message that it covers
    generation: int
    requests: int  # digest requests up to here are satisfied by it
    previous: dict[str, str]  # the digests so far, by kind
    lines: tuple[Line, ...]
    given_up: frozenset[int]  # of the lines, the messages that no facts could be had from
    sources: tuple[int, ...]
    asked: bool  # about before, by a run that committed nothing; more may have come since

    def without_given_up(self) -> Window:
        """The window without the messages that may make the model stumble here as well."""
        return replace(
            self,
            lines=tuple(line for line in self.lines if line.id not in self.given_up),
            sources=tuple(source for source in self.sources if source not in self.given_up),
        )


def window(tx: Transaction, session: SessionRow, requests: int, *, rebuild: bool, patient: bool) -> Window:
    """Everything since the last digest, or (``rebuild``) since the beginning.

    A ``patient`` run covers what an earlier one has asked about, when there is such a question: its answer may be on
    its way in a batch, and what has come since is the next run's. Whoever waits for a digest wants it of everything.
    """
    after = 0 if rebuild else session.digest_end_seq
    generation = session.digest_generation + rebuild
    previous = {} if rebuild else digests.latest(tx, session.id)
    asked = open_questions.find(tx, session.namespace_id, PURPOSE, session.id) if patient else None
    if asked and (asked["after"], asked["generation"]) == (after, generation):
        end, requests, asked_lines, rests_on = (asked[name] for name in ("end", "requests", "lines", "sources"))
        there = digests.items_by_id(tx, rests_on)
        shown = [there[i] for i in asked_lines if i in there]
        rests_on = [i for i in rests_on if i in there]
    else:
        asked, end = None, session.last_seq
        shown, rests_on = _new(tx, session, after)
    return Window(
        session=session,
        after=after,
        end=end,
        generation=generation,
        requests=requests,
        previous={kind: content for kind, (_, content) in previous.items()},
        lines=tuple(line for one in shown if (line := _line(one.text)).content),
        given_up=frozenset(one.text.id for one in shown if one.given_up),
        sources=tuple(dict.fromkeys((*rests_on, *(memory_id for memory_id, _ in previous.values())))),
        asked=asked is not None,
    )


def note(tx: Transaction, window: Window) -> None:
    """Note what is about to be asked about, so that a rerun asks the same whatever has come meanwhile."""
    question = {
        "after": window.after,
        "end": window.end,
        "generation": window.generation,
        "requests": window.requests,
        "lines": [line.id for line in window.lines],
        "sources": list(window.sources),
    }
    open_questions.note(tx, window.session.namespace_id, PURPOSE, window.session.id, question)


def _new(tx: Transaction, session: SessionRow, after: int) -> tuple[list[digests.WindowItem], list[int]]:
    """What is new since ``after``, in the order of the conversation, and the memories that it rests on."""
    found = digests.window_facts(tx, session.id, after, session.last_seq)
    said = digests.window_messages(tx, session.id, after, session.last_seq)
    # Messages that are not derived yet, or gave no fact at all in a window without any, go in as they are.
    raw = [one for one in said if not (found and one.derived)]
    shown = sorted((*_each_once(found), *raw), key=lambda one: one.text.seq)
    return shown, [one.text.id for one in (*found, *raw)]


def _each_once(found: Sequence[digests.WindowItem]) -> list[digests.WindowItem]:
    """The facts without those that another observer holds too."""
    first: dict[tuple[str, str | None], digests.WindowItem] = {}
    for fact in found:
        first.setdefault((fact.text.author, fact.content_key), fact)
    return list(first.values())


def _line(said: MessageText) -> Line:
    """A message or a fact as the model sees it; an echo of what it was told before is no news."""
    content = said.content if said.role == "fact" else without_echo(said.content)
    return Line(id=said.id, author=said.author, role=said.role, content=content, occurred_at=said.occurred_at)
