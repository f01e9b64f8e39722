"""A namespace at its budget stops calling, says so, and goes on when the day turns; what was spent can be read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cognition import budget
from nexus_tasks.cognition.digest.summarize import build_request
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import BudgetHeld, ConfigurationError, OverBudget
from nexus_tasks.llm.answers import PromptLine
from nexus_tasks.llm.base import Usage
from nexus_tasks.settings import Settings, load_settings
from nexus_tasks.storage import ledger
from tests.commandline import nexus
from tests.integration.inline import NAMESPACE, facts, job_context, say, time_passes, waiting, work
from tests.sandbox import Sandbox
from tests.standin import Call, StandIn

Claude = Callable[..., Sandbox]
PRICES = '{"claude-haiku-5-5": [4.0, 20.0, 5.0, 0.4]}'


def spent_today() -> float:
    """What ``nexus status`` says was spent today."""
    [found] = Nexus().status(NAMESPACE).namespaces
    return float(found.spend_today_usd)


def test_nothing_is_lost_while_a_budget_is_spent_and_work_goes_on_when_the_day_turns(
    claude: Claude, standin: StandIn
) -> None:
    here = claude(NEXUS_BUDGET_USD_PER_DAY="1")
    say("I moved to Lisbon.")
    work("derive_memory")
    here.sql("UPDATE model_calls SET cost_usd = 0.9999")
    assert spent_today() == 0.9999
    said = ("I drink tea.", "My sister is called Rosa.", "I run on Sundays.")
    for number, text in enumerate(said):
        say(text, session=f"chat {number}")
    work("derive_memory")
    [status] = Nexus().status(NAMESPACE).namespaces
    assert [wait.reason for wait in status.waits if wait.kind == "derive_memory"] == ["budget"] * 3
    assert all(wait.detail.startswith("0.9999 of 1.0000 USD") for wait in status.waits)
    time_passes(here)  # woken too early, they wait again
    work("derive_memory")
    assert (standin.counters.calls, status.underived, len(facts())) == (1, 3, 1)

    here.sql("UPDATE model_calls SET at = at - interval '1 day'")
    assert spent_today() == 0
    time_passes(here)
    work("derive_memory")
    assert sorted(fact.content for fact in facts()) == sorted(f"ann said: {t}" for t in ("I moved to Lisbon.", *said))
    assert here.sql("SELECT 1 FROM budget_holds UNION ALL SELECT 1 FROM dead_letters") == []


@pytest.mark.parametrize("error", [OverBudget, BudgetHeld])
def test_jobs_wait_for_the_day_of_the_ledger_whatever_the_clock_of_redis_says(
    here: Sandbox, error: type[OverBudget]
) -> None:
    """With Postgres some seconds behind, a job would wake just before the ledger's midnight, and wait another hour."""
    Nexus().create_namespace(NAMESPACE)
    job, cost = job_context(), Decimal("0.6")
    with default_deployment().database.transaction() as tx:
        if error is BudgetHeld:
            budget._hold(tx, job, 1.0, cost, 86_400.0 * 3)
        with pytest.raises(error) as refused:
            budget._hold(tx, job, 1.0 if error is BudgetHeld else 0.5, cost, 60.0)
    [(left,)] = here.sql("SELECT 86400 - extract(epoch FROM now() AT TIME ZONE 'UTC')::int % 86400")
    for clock_of_redis in (0.0, 2.0, 43_200.0, 86_399.0):
        waits = refused.value.wait_seconds(clock_of_redis)
        assert waits == pytest.approx(min(left + 2, 600.0 if error is BudgetHeld else 3_600.0), abs=10)


def test_jobs_look_within_an_hour_whether_the_budget_of_the_deployment_was_raised(
    claude: Claude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wakes a job when the variable is raised and the workers are started again."""
    here = claude(NEXUS_BUDGET_USD_PER_DAY="0.000001")
    say("I moved to Lisbon.")
    work("derive_memory")
    [claim] = [claim for claim in waiting() if claim.kind == "derive_memory"]
    assert claim.wait_reason == "budget"
    assert (claim.due_at or 0) - time.time() <= 3_601
    monkeypatch.setenv("NEXUS_BUDGET_USD_PER_DAY", "10")
    with here.another():
        time_passes(here)
        work("derive_memory")
        assert len(facts()) == 1


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_parallel_calls_hold_no_more_than_the_budget(here: Sandbox, isolation: str) -> None:
    """Whatever isolation the database has by default: the sum must be that of after the wait for others."""
    Nexus().create_namespace(NAMESPACE)
    [(acme,)] = here.sql("SELECT id FROM namespaces")
    here.sql(f"ALTER DATABASE \"{here.database_name}\" SET default_transaction_isolation = '{isolation}'")
    here.deployment.database.dispose()  # a new connection reads the setting
    together = threading.Barrier(6)

    def call(_: int) -> int | None:
        together.wait(60)
        with default_deployment().database.transaction() as tx:
            return ledger.hold_budget(tx, acme, budget_usd=1.0, cost=Decimal("0.4"), seconds=60).id

    try:
        with ThreadPoolExecutor(6) as pool:
            granted = [hold for hold in pool.map(call, range(6)) if hold is not None]
    finally:
        here.sql(f'ALTER DATABASE "{here.database_name}" RESET default_transaction_isolation')
    assert len(granted) == 2


@pytest.mark.parametrize(("letter", "tokens"), [("私", 1.5), ("я", 1.0), ("a", 0.25)])
def test_the_highest_cost_of_a_text_counts_its_script(claude: Claude, letter: str, tokens: float) -> None:
    """Before, a Japanese text was held at a sixth of its tokens, and 15 parallel calls spent twice the budget."""
    resources = claude(NEXUS_PRICES='{"claude-haiku-5-5": [1, 5, 1, 1]}').deployment.resources

    def cost(text: str) -> Decimal:
        line = PromptLine(
            id=1, author="ann", role="user", content=text, occurred_at=datetime(2026, 3, 1, tzinfo=UTC), time_zone=None
        )
        return budget.highest_cost(resources, build_request(600, "chat", "", (line,), 1_800))

    assert abs(float(cost(letter * 10_000) - cost("")) * 1_000_000 - tokens * 10_000) < 10


def test_what_was_spent_is_said_of_the_namespace_and_of_the_job(claude: Claude) -> None:
    here = claude(NEXUS_PRICES=PRICES)
    say("I moved to Lisbon.")
    work("derive_memory")
    [(job, usd, counted)] = here.sql(
        "SELECT job_id, cost_usd, 4.0 * input_tokens + 20.0 * output_tokens + 5.0 * cache_write_tokens"
        " + 0.4 * cache_read_tokens FROM model_calls"
    )
    assert usd == counted / 1_000_000 > 0
    status = json.loads(nexus("status", "--namespace", NAMESPACE, "--json").stdout)
    assert (status["namespaces"][0]["spend_today_usd"], status["namespaces"][0]["model_calls_today"]) == (float(usd), 1)
    shown = json.loads(nexus("jobs", "show", job, "--json").stdout)
    assert (Decimal(str(shown["cost_usd"])), shown["model_calls"]) == (usd, 1)


def test_the_prices_of_cache_reads_and_writes_count() -> None:
    usage = Usage(input_tokens=1, output_tokens=10, cache_write_tokens=100, cache_read_tokens=1_000)
    assert ledger.cost_usd(usage, (1.0, 2.0, 3.0, 4.0)) == Decimal("0.004321")


def test_prices_override_the_table_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Settings().price_of("claude-sonnet-5-5")
    monkeypatch.setenv("NEXUS_PRICES", PRICES)
    assert Settings().price_of("claude-haiku-5-5") == (4.0, 20.0, 5.0, 0.4)
    assert Settings().price_of("claude-sonnet-5-5") == listed


@pytest.mark.parametrize("price", ["-1", "Infinity", "NaN"])
def test_a_price_that_would_open_every_budget_is_refused(monkeypatch: pytest.MonkeyPatch, price: str) -> None:
    monkeypatch.setenv("NEXUS_PRICES", f'{{"claude-haiku-5-5": [{price}, 20, 5, 0.4]}}')
    with pytest.raises(ConfigurationError, match=r"NEXUS_PRICES\[claude-haiku-5-5\]\[0\]: Input should be"):
        load_settings()


@pytest.mark.parametrize("name", ["LEASE_SECONDS", "MODEL_TIMEOUT", "DERIVE_MAX_WAIT", "SHUTDOWN_GRACE"])
def test_a_time_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"NEXUS_{name}", "inf")
    with pytest.raises(ConfigurationError, match=f"NEXUS_{name}: Input should be a finite number"):
        load_settings()


def test_a_model_without_a_price_passes_no_budget(claude: Claude, standin: StandIn) -> None:
    here = claude(NEXUS_MODEL_DERIVE="claude-nobody-knows", NEXUS_BUDGET_USD_PER_DAY="1")
    standin.models = standin.models | {"claude-nobody-knows"}
    say("I moved to Lisbon.")
    work("derive_memory")
    [status] = Nexus().status(NAMESPACE).namespaces
    assert [(wait.reason, wait.detail) for wait in status.waits if wait.kind == "derive_memory"] == [
        ("price", "the price of claude-nobody-knows is unknown")
    ]
    assert standin.counters.calls == 0
    checks = {one["name"]: one for one in json.loads(nexus("doctor", "--json").stdout)["checks"]}
    assert (checks["prices"]["ok"], "claude-nobody-knows" in checks["prices"]["found"]) == (False, True)
    here.environment["NEXUS_PRICES"] = '{"claude-nobody-knows": [1, 1, 1, 1]}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEXUS_PRICES", here.environment["NEXUS_PRICES"])
        with here.another():
            time_passes(here)
            work("derive_memory")
            assert len(facts()) == 1


def test_a_budget_that_is_lowered_during_a_run_holds_for_its_next_call(claude: Claude, standin: StandIn) -> None:
    claude(NEXUS_MAX_TOKENS_DERIVE="4000")
    Nexus().create_namespace(NAMESPACE)
    Nexus().set_namespace(NAMESPACE, budget_usd_per_day=1)

    def lowers(_: Call) -> str:
        Nexus().set_namespace(NAMESPACE, budget_usd_per_day=0.0001)
        return "no answer"

    standin.answer("derive", lowers)  # an invalid answer: the batch is halved
    say("I moved to Lisbon.", "I drink tea.")
    work("derive_memory")
    assert standin.counters.calls == 1
    [status] = Nexus().status(NAMESPACE).namespaces
    assert {wait.reason for wait in status.waits if wait.kind == "derive_memory"} == {"budget"}
