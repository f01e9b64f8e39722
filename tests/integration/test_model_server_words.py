"""The words of a model server may quote a user's. They are in the dead letter, and not in the log."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import JobError, Misconfigured, Permanent, Refused, TooLarge, Transient, with_quotation
from nexus_tasks.llm.openai.errors import job_error
from tests.integration.inline import NAMESPACE, due_at_once, say, work
from tests.sandbox import Sandbox, engine
from tests.standin import StandIn, faults

TEXT = "quokkas"
SAID = f"I keep {TEXT} at home."
FAULTS = {
    "rejected": (faults.status(400, "invalid_request_error", f"messages.0: '{SAID}' is not allowed"), True),
    "refused": (faults.refused(f"The user says: {SAID}"), True),
    "failed": (faults.status(500, "api_error", f"cannot parse: {SAID}"), False),
    "unknown model": (faults.status(404, "not_found_error", f"model: {SAID}"), False),
    "a type that is none": (faults.status(400, f"invalid: {SAID}", f"{SAID}"), True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_log_has_the_status_and_the_request_and_the_dead_letter_has_the_words(
    claude: Callable[..., Sandbox], standin: StandIn, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    here = claude()
    caplog.set_level(logging.DEBUG, "nexus_tasks")
    answer, dies = FAULTS[fault]
    standin.always(answer)
    say(SAID)
    work("derive_memory")
    due_at_once(here)
    assert TEXT not in caplog.text
    letters = here.sql("SELECT message, traceback FROM dead_letters")
    assert len(letters) == dies
    for message, trace in letters:
        assert TEXT in message
        assert TEXT not in trace
    if dies and answer.status != 200:
        assert f"{answer.status}" in caplog.text
        assert "req_standin" in caplog.text
    assert TEXT not in str(engine.claims.paused())
    Nexus().forget(NAMESPACE, everything=True)
    assert here.sql("SELECT message FROM dead_letters") == []


@pytest.mark.parametrize(
    ("status", "kind", "code", "error"),
    [
        (400, "invalid_request_error", None, Permanent),
        (400, "invalid_request_error", "context_length_exceeded", TooLarge),
        (400, "invalid_request_error", "content_filter", Refused),
        (404, "not_found", None, Misconfigured),
        (500, "server_error", None, Transient),
    ],
)
def test_the_errors_of_openai(status: int, kind: str, code: str | None, error: type[JobError]) -> None:
    import openai

    body: dict[str, Any] = {"message": SAID, "type": kind, "code": code}
    response: Any = httpx.Response(
        status, headers={"x-request-id": "req_1"}, request=httpx.Request("POST", "http://localhost")
    )
    found = job_error(openai.APIStatusError(f"Error: {body}", response=response, body=body))
    assert type(found) is error
    shown = "".join(traceback.format_exception(found))
    assert TEXT not in shown
    assert f"{status} {kind} (request req_1)" in shown
    assert SAID in with_quotation(found)
