"""Erasure while a model is asked: nothing that any prompt showed stays, although the model repeats it.

A prompt shows more than messages: it shows facts, notes, digests and topics. An erasure must reach a run through each
text that the run's prompt shows. The tests of single jobs know these ways; the tests here find a text without one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import NotFound
from nexus_tasks.llm.base import Purpose
from tests.integration.inline import NAMESPACE, observations, pending, time_passes, work
from tests.integration.test_forget import SECRET, traces
from tests.integration.test_observation import SMALL
from tests.sandbox import Sandbox
from tests.standin import Call, Fault, StandIn, faults
from tests.standin.answers import default_answer

ID = re.compile(r"\[(?:id )?#?(\d+)")
PURPOSES: tuple[Purpose, ...] = ("derive", "digest", "reflect", "topics", "facts", "observe", "condense")


def repeat(call: Call, *, honest: bool) -> Any:
    """An answer that says the secret whenever the prompt shows it, and cites what says it, or (not ``honest``) what
    does not say it.
    """
    shown = "\n".join(call.parts).casefold()
    if SECRET not in shown:
        return default_answer(call)
    said = [(int(line_id[1]), SECRET in line) for line in shown.splitlines() if (line_id := ID.search(line))]
    sources = [line_id for line_id, secret in said if secret is honest][-2:]
    told = f"Ann says that {SECRET} is near the harbour."
    if call.purpose == "derive":
        answer = default_answer(call)["observations"]
        return observations((told, sources), *(answer[:2] if honest else ()))
    if call.purpose == "reflect":
        ids = sorted({line_id for line_id, _ in said})
        return {"relations": [], "insights": [{"content": told, "support": (sources + ids)[:3], "rationale": SECRET}]}
    if call.purpose in ("observe", "condense"):
        notes = [{"time": None, "priority": "high", "content": f"{told} {n}", "sources": sources} for n in range(12)]
        days = [{"date": "2026-01-01", "notes": notes[: 3 if call.purpose == "condense" else 12]}]
        task = {"current_task": f"Find {SECRET}.", "suggested_response": f"Ask about {SECRET}."}
        return {"days" if call.purpose == "observe" else "condensed": days, **task}
    if call.purpose == "facts":
        return {"facts": [{"category": "project", "confidence": 9, "content": told, "sources": sources}]}
    if call.purpose == "topics":
        topic = {"filename": f"{SECRET}.md", "name": SECRET, "description": told, "type": "project"}
        return {"topics": [topic | {"content": f"- {told}"}]}
    return default_answer(call)


def live(here: Sandbox, erased: list[str]) -> None:
    """Everything that a namespace does with two sessions, until nothing is left to do.

    After the erasure, the secret is not said again.
    """
    for session, first, count in (("chat", 0, 24), ("later", 30, 12)):
        said = [f"On day {first + n} I walked {first + n} miles to the mill." for n in range(count)]
        for part in range(0, count, 6):
            if part == 0 and not erased:
                said[5] = f"Today {SECRET} was seen near the harbour."
            Nexus().ingest(NAMESPACE, session, [{"content": one, "author": "ann"} for one in said[part : part + 6]])
            Nexus().extract(NAMESPACE, session)
            until_idle(here)
            Nexus().context(NAMESPACE, session_key=session)
        with contextlib.suppress(NotFound):  # all of it was erased
            Nexus().end_session(NAMESPACE, session)
        until_idle(here)
    Nexus().dream(NAMESPACE)
    until_idle(here)


def until_idle(here: Sandbox) -> None:
    """Run all jobs, and let the waits of those that wait end."""
    for _ in range(20):
        work()
        if not time_passes(here):
            return
    raise AssertionError(f"These never end: {[(claim.kind, claim.wait_reason) for claim in pending()]}")


def erase_messages() -> None:
    for message in Nexus().memories(NAMESPACE, levels=["raw"], limit=1_000):
        if SECRET in message.content:
            Nexus().forget(NAMESPACE, memory_id=message.id)


def erase_sessions() -> None:
    for session in Nexus().sessions(NAMESPACE):
        Nexus().forget(NAMESPACE, session_key=session.session_key)


def erase_everything() -> None:
    Nexus().forget(NAMESPACE, everything=True)


class Erasing:
    """A model that erases. It counts the calls whose prompt shows the secret, and calls ``erase`` during number ``at``.

    ``then`` is the fault of the call after that one; ``None`` when that call is answered.
    """

    def __init__(
        self, standin: StandIn, erase: Callable[[], None], *, at: int, honest: bool, then: Fault | None
    ) -> None:
        self.standin, self.erase, self.at, self.honest, self.then = standin, erase, at, honest, then
        self.shown, self.erased, self.faults = 0, list[str](), list[Exception]()
        for purpose in PURPOSES:
            standin.answer(purpose, self.answer)

    def answer(self, call: Call) -> Any:
        if SECRET in "".join(call.parts).casefold() and not self.erased:
            self.shown += 1
            if self.shown == self.at:
                self.erased.append(call.purpose)
                try:
                    self.erase()
                except Exception as fault:  # in a thread of the stand-in, where no test sees it
                    self.faults.append(fault)
                if self.then:
                    self.standin.faults.append(self.then)
        return repeat(call, honest=self.honest)


LATER = {"answered": None, "overloaded": faults.overloaded(), "refused": faults.refused()}


def cases() -> Iterator[Any]:
    """All are long but one: the model cites nothing that says the secret, and the call after the erasure fails."""
    for erase in (erase_messages, erase_sessions, erase_everything):
        for honest in (True, False):
            for name, then in LATER.items():
                short = erase is erase_messages and not honest and name == "overloaded"
                title = f"{erase.__name__}-{'cited' if honest else 'not-cited'}-{name}"
                yield pytest.param(erase, honest, then, id=title, marks=() if short else pytest.mark.long)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("erase", "honest", "then"), list(cases()))
def test_nothing_of_what_a_prompt_showed_is_left(
    claude: Callable[..., Sandbox], standin: StandIn, erase: Callable[[], None], honest: bool, then: Fault | None
) -> None:
    """The erasure comes at each call in turn; the call after it is answered, or fails."""
    here = claude(**SMALL)
    Nexus().create_namespace(NAMESPACE, observe=True)
    left, purposes = [], list[str]()
    while True:
        model = Erasing(standin, erase, at=len(purposes) + 1, honest=honest, then=then)
        live(here, model.erased)
        assert model.faults == []
        if not model.erased:
            break
        purposes += model.erased
        left += [(len(purposes), *model.erased, trace[:200]) for trace in traces(here)]
        Nexus().forget(NAMESPACE, everything=True)
        assert traces(here) == []
        standin.faults.clear()
    assert left == []
    assert set(purposes) == set(PURPOSES)
