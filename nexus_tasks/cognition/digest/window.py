"""Choose the window of a session's next digest: the facts and messages after the last digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition.echo import told_by, without_echo
from nexus_tasks.llm.answers import PromptLine
from nexus_tasks.storage import digests, open_questions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import MessageText
from nexus_tasks.storage.models import SessionRow

PURPOSE = "digest"
# The most messages of one digest. Their texts have at most 16 MB together. The rest is for the next run. So a run
# reads, locks and links a bounded number of rows, and a digest has a bounded number of sources. Every model call locks
# all shown messages: in one digest of 20,000 messages, that took 35 of 63 s.
MOST_MESSAGES = 2_000


@dataclass(frozen=True, kw_only=True)
class Window:
    """The facts and messages that one digest covers."""

    session: SessionRow
    after: int  # the seq (the position in the session) of the last message before the window
    end: int  # the seq of the window's last message
    generation: int
    requests: int  # the digest satisfies all digest requests up to this id, if the window is not cut off
    previous: dict[str, str]  # the texts of the last digest, by kind (short, long)
    lines: tuple[PromptLine, ...]
    given_up: frozenset[int]  # ids of shown messages whose derivation gave up
    sources: tuple[int, ...]  # ids of the memories from which the digest is made
    asked: bool  # whether an earlier run saved this window and ended without a digest

    @property
    def cut_off(self) -> bool:
        """Whether the window ends before the session's last message, because it may have no more messages."""
        return not self.asked and self.end < self.session.last_seq

    def without_given_up(self) -> Window:
        """The window without messages whose derivation gave up, because the model may fail on these messages again."""
        return replace(
            self,
            lines=tuple(line for line in self.lines if line.id not in self.given_up),
            sources=tuple(source for source in self.sources if source not in self.given_up),
        )


def next_window(tx: Transaction, session: SessionRow, requests: int, *, rebuild: bool, patient: bool) -> Window:
    """The window of the next digest: the facts and messages after the last digest, at most ``MOST_MESSAGES`` messages.

    Args:
        requests: the id of the last digest request of the session.
        rebuild: begin at the session's first message.
        patient: when an earlier run saved its window, return that window again, because a message batch may have the
            answer for it. The next run covers the later messages.
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
        lines = _lines(tx, session, shown)
    else:
        asked, end = None, after
        shown, rests_on, lines = list[digests.WindowItem](), list[int](), tuple[PromptLine, ...]()
        while end < session.last_seq and not lines:
            start, end = end, _end(tx, session, end)
            shown, rests_on = _new(tx, session, start, end)
            lines = _lines(tx, session, shown)
    return Window(
        session=session,
        after=after,
        end=end,
        generation=generation,
        requests=requests,
        previous={kind: content for kind, (_, content) in previous.items()},
        lines=lines,
        given_up=frozenset(one.text.id for one in shown if one.given_up),
        sources=tuple(dict.fromkeys((*rests_on, *(memory_id for memory_id, _ in previous.values())))),
        asked=asked is not None,
    )


def save_window(tx: Transaction, window: Window) -> None:
    """Save the window before the model is asked. So a rerun asks the same question even after new messages came."""
    question = {
        "after": window.after,
        "end": window.end,
        "generation": window.generation,
        "requests": window.requests,
        "lines": [line.id for line in window.lines],
        "sources": list(window.sources),
    }
    open_questions.note(tx, window.session.namespace_id, PURPOSE, window.session.id, question)


def _end(tx: Transaction, session: SessionRow, after: int) -> int:
    """The seq of the last message of the next window after ``after``. See :func:`digests.window_end`."""
    found = digests.window_end(tx, session.id, after, MOST_MESSAGES) or session.last_seq
    return min(found, session.last_seq)  # later messages were stored since the session was read


def _new(tx: Transaction, session: SessionRow, after: int, end: int) -> tuple[list[digests.WindowItem], list[int]]:
    """The new facts and messages in the conversation's order, and their ids.

    A fact or message is new when ``after < seq <= end``. A fact that repeats another fact is left out, but its id is
    among the ids.
    """
    found = digests.window_facts(tx, session.id, after, end)
    said = digests.window_messages(tx, session.id, after, end)
    # The model sees a message itself when no facts were derived from it yet, or when the window has no facts at all.
    raw = [one for one in said if not (found and one.derived)]
    shown = sorted((*_each_once(found), *raw), key=lambda one: one.text.seq)
    return shown, [one.text.id for one in (*found, *raw)]


def _each_once(found: Sequence[digests.WindowItem]) -> list[digests.WindowItem]:
    """The facts without repetitions. Two observers may have the same fact."""
    first: dict[tuple[str, str | None], digests.WindowItem] = {}
    for fact in found:
        first.setdefault((fact.text.author, fact.content_key), fact)
    return list(first.values())


def _lines(tx: Transaction, session: SessionRow, shown: Sequence[digests.WindowItem]) -> tuple[PromptLine, ...]:
    told = told_by(tx, session.namespace_id, ((one.text.role, one.text.content) for one in shown))
    return tuple(line for one in shown if (line := _line(one.text, told)).content)


def _line(said: MessageText, told: Mapping[int, str]) -> PromptLine:
    """A message or a fact as the model sees it. A message is shown without its echoed lines."""
    content = said.content if said.role == "fact" else without_echo(said.content, said.role, told)
    return PromptLine(
        id=said.id,
        author=said.author,
        role=said.role,
        content=content,
        occurred_at=said.occurred_at,
        time_zone=said.time_zone,
    )
