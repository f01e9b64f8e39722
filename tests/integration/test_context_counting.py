"""A context held under its bound by Claude's own count, and by the estimate when Claude cannot be asked."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import InvalidInput
from nexus_tasks.llm.anthropic import model
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, observations, say, work
from tests.standin import StandIn
from tests.standin.faults import slow, status


def fit_to_count(text: str) -> int:
    """As the stand-in counts: more than the estimate, so that the estimate would break the bound."""
    return 7 + math.ceil(len(text) / 3) if text else 0


@pytest.fixture
def full(claude: Any, standin: StandIn) -> Any:
    here = claude()
    standin.answer(
        "derive", lambda _: observations(*((f"Ann likes tea number {n} with much sugar", [1]) for n in range(60)))
    )
    say("I like tea.")
    work("derive_memory")
    return here


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("most", [1, 8, 50, 51, 120, 400, 900, 5_000])
def test_the_real_count_is_within_the_bound_and_uses_it(most: int) -> None:
    block = Nexus().context(NAMESPACE, query="tea", max_tokens=most, count="anthropic")
    assert block.counted_by == "anthropic"
    assert block.tokens == fit_to_count(block.text) <= block.max_tokens == most
    if 120 <= most <= 400:  # there is more than fits
        assert block.tokens >= 0.7 * most
    assert block == Nexus().context(NAMESPACE, query="tea", max_tokens=most, count="anthropic")


@pytest.mark.usefixtures("full")
def test_the_estimate_has_to_do_when_claude_cannot_be_asked(standin: StandIn) -> None:
    estimated = Nexus().context(NAMESPACE, query="tea", max_tokens=300)
    assert (estimated.counted_by, estimated.notes) == ("estimate", ())
    standin.always(status(529, "overloaded_error", "later"))
    block = Nexus().context(NAMESPACE, query="tea", max_tokens=300, count="anthropic")
    assert (block.text, block.tokens, block.counted_by) == (estimated.text, estimated.tokens, "estimate")
    assert "estimated" in block.notes[0]


@pytest.mark.usefixtures("full")
def test_a_reader_does_not_wait_long_for_a_count(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a reader waited as long as a job waits for an answer, 120 s."""
    monkeypatch.setattr(model, "COUNT_SECONDS", 0.2)
    standin.always(slow(30))
    block = Nexus().context(NAMESPACE, query="tea", max_tokens=300, count="anthropic")
    assert block.counted_by == "estimate"


@pytest.mark.usefixtures("full")
def test_the_command_says_who_counted() -> None:
    told = nexus("context", "--namespace", NAMESPACE, "--query", "tea", "--count", "anthropic", "--json")
    assert json.loads(told.stdout)["counted_by"] == "anthropic"
    told = nexus("context", "--namespace", NAMESPACE, "--max-tokens", "100", "--count", "anthropic")
    assert "counted by Claude" in told.stderr
    with pytest.raises(InvalidInput):
        Nexus().context(NAMESPACE, count="guess")  # type: ignore[arg-type]
