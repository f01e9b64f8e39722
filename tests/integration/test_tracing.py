"""Traces: from a call of the client over jobs, retries and crashes to the commit, as a collector receives them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.collector import Collector, Seen, collecting
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts
from tests.sandbox import Sandbox, eventually

LONG = 60.0  # seconds: a deadline for a machine that is busy with other things
BOTH_POOLS = pytest.mark.parametrize("pool", ["threads", "processes"])
INGEST = """
from nexus_tasks import Message, Nexus
said = ["I moved to Lisbon in March.", "I drink green tea every morning before work."]
Nexus().ingest("acme", "chat-1", [Message(content=text, author="ann") for text in said], end=True)
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def here(deploy: Callable[..., Sandbox], collector: Collector) -> Sandbox:
    """A deployment whose every process sends its spans to the collector, but not this process."""
    made = deploy(NEXUS_LEASE_SECONDS="3")
    made.environment |= collector.environment
    return made


def produce(here: Sandbox, code: str, **environment: str) -> str:
    """Run code as a producer; returns what it prints."""
    command = [sys.executable, "-c", code]
    env = {**here.environment, **ROOT, **environment}
    return subprocess.run(command, env=env, cwd=here.folder, check=True, capture_output=True, text=True).stdout


def play(here: Sandbox, call: str, around: str = "") -> str:
    """Ask for a job of the kind `play` in a producer; returns its id."""
    code = f"""
from nexus_tasks import Nexus, tracing
from tests.integration.jobkinds import play
Nexus().create_namespace("acme")
with tracing.span("a request") if {around!r} else tracing.NO_SPAN:
    print(play.delay({call}).id)
"""
    return produce(here, code).split()[-1]


def another(here: Sandbox) -> None:
    """Start a worker, which a job may kill before it is ready."""
    with suppress(AssertionError):
        here.worker(*WITH_KINDS, concurrency=1, **ROOT)


def one(found: list[Seen]) -> Seen:
    assert len(found) == 1, found
    return found[0]


def waited(collector: Collector, name: str, **attributes: Any) -> Seen:
    return one(eventually(lambda: collector.named(name, **attributes), within=LONG))


def test_one_trace_leads_from_ingest_over_the_jobs_and_model_calls_to_the_commits(
    here: Sandbox, collector: Collector
) -> None:
    check_the_trace_of_ingest(here, collector, "threads")


@pytest.mark.long
def test_the_same_trace_comes_from_a_pool_of_processes(here: Sandbox, collector: Collector) -> None:
    check_the_trace_of_ingest(here, collector, "processes")


def check_the_trace_of_ingest(here: Sandbox, collector: Collector, pool: str) -> None:
    here.worker(pool=pool, concurrency=2)
    produce(here, INGEST)
    digest = waited(collector, "digest_session", nexus_job_outcome="completed")
    ingest = waited(collector, "nexus.ingest", nexus_messages_stored=2)
    derivation = one(collector.named("derive_memory", nexus_job_outcome="completed"))
    assert {span.trace for span in collector.spans} == {ingest.trace}
    assert (ingest.parent, derivation.parent, digest.parent) == ("", ingest.id, ingest.id)
    assert derivation.attributes["nexus.batch.jobs"] == 2
    for run, purpose in ((derivation, "derive"), (digest, "digest")):
        call = one(collector.named("chat offline", nexus_model_purpose=purpose))
        assert {"gen_ai.usage.input_tokens", "nexus.model.cost_usd"} <= call.attributes.keys()
        assert call.attributes["nexus.model.saved"] is False
        commit = one([span for span in collector.named("commit") if span.parent == run.id])
        assert run.began <= call.began <= call.ended <= commit.began <= commit.ended <= run.ended, "in this order"
        assert call.parent == run.id
        queue = one(collector.named(f"{run.name} in the queue"))
        assert ingest.began - 1 < queue.began < queue.ended < run.began + 0.1, "the wait in the queue"
        assert queue.seconds == pytest.approx(run.attributes["nexus.queue.seconds"], abs=0.01)
    assert ingest.resource["service.name"] == "nexus-tasks"
    assert "acme" not in str(collector.raw), "namespaces are named only when it is allowed"


@pytest.mark.long
@BOTH_POOLS
def test_a_retry_is_in_the_trace_of_the_first_run(here: Sandbox, collector: Collector, pool: str) -> None:
    here.worker(*WITH_KINDS, pool=pool, concurrency=2, **ROOT)
    job_id = play(here, "plan=('transient', 'ok')", around="a span")
    second = waited(collector, "play", nexus_job_outcome="completed")
    first = one(collector.named("play", nexus_job_outcome="waits"))
    request = waited(collector, "a request")
    assert first.trace == second.trace == request.trace
    assert first.parent == second.parent == request.id
    assert {span.attributes["nexus.job.id"] for span in (first, second)} == {job_id}
    told = first.attributes
    assert (told["nexus.wait.reason"], told["error.type"], first.failed) == ("retry", "Transient", True)
    assert (told["nexus.job.attempt"], second.attributes["nexus.job.attempt"], second.failed) == (1, 2, False)


@pytest.mark.long
@BOTH_POOLS
@pytest.mark.parametrize("around", ["a span", ""])
def test_a_run_after_a_sigkill_is_in_the_trace_of_the_run_that_was_killed(
    here: Sandbox, collector: Collector, pool: str, around: str
) -> None:
    """Also when nothing had begun a trace: then the killed run has begun it, and its span was never sent."""
    here.worker(*WITH_KINDS, pool=pool, concurrency=1, **ROOT)
    play(here, "plan=('wait', 'kill', 'ok')" if not around else "plan=('kill', 'ok')", around=around)
    if not around:  # the first run waits for 9 s; its span is sent, and the second run is killed
        first = waited(collector, "play", nexus_wait_reason="ripeness")
    if pool == "threads":
        eventually(lambda: here.workers[0].process.poll() is not None, within=LONG)
        here.worker(*WITH_KINDS, pool=pool, concurrency=1, **ROOT)
    again = waited(collector, "play", nexus_job_crashes=1)
    eventually(lambda: collector.named("play", nexus_job_outcome="completed"), within=LONG)
    asked = waited(collector, "a request") if around else first
    assert again.trace == asked.trace
    assert again.attributes["nexus.job.attempt"] == 2


@pytest.mark.long
def test_a_job_that_kills_every_process_ends_in_its_trace(here: Sandbox, collector: Collector) -> None:
    """From the third run on it runs in a process of its own, whose death the worker's span tells."""
    here.environment["NEXUS_MAX_ATTEMPTS"] = "3"
    here.worker(*WITH_KINDS, concurrency=1, **ROOT)
    play(here, "plan=('kill',)", around="a span")
    for number in range(2):
        eventually(lambda n=number: here.workers[n].process.poll() is not None, within=LONG)
        another(here)
    dead = waited(collector, "play dead letter", nexus_job_outcome="dead")
    alone = waited(collector, "play", nexus_job_outcome="process died")
    assert dead.trace == alone.trace == waited(collector, "a request").trace


@pytest.mark.long
def test_a_job_in_a_process_of_its_own_sends_its_spans(here: Sandbox, collector: Collector) -> None:
    here.worker(*WITH_KINDS, concurrency=1, **ROOT)
    code = """
from nexus_tasks import Nexus
from tests.integration.jobkinds import play_kept
Nexus().create_namespace("acme")
play_kept.delay(plan=("kill", "kill", "ok"))
"""
    produce(here, code)
    for number in range(2):
        eventually(lambda n=number: here.workers[n].process.poll() is not None, within=LONG)
        another(here)
    run = waited(collector, "play_kept", nexus_job_outcome="completed")
    assert waited(collector, "commit").parent == run.id


@pytest.mark.long
def test_a_batch_is_linked_to_the_traces_of_its_siblings(here: Sandbox, collector: Collector) -> None:
    """Two calls of the client, one model call: it is in one trace, and the other trace says where."""
    for number in (1, 2):
        ingest = f"Nexus().ingest('acme', 'chat-1', [Message(content='I have {number} cats at home.', author='ann')])"
        produce(here, f"from nexus_tasks import Message, Nexus\n{ingest}")
    here.worker(concurrency=1, NEXUS_DERIVE_MAX_WAIT="0")
    run = waited(collector, "derive_memory", nexus_job_outcome="completed")
    aside = waited(collector, "derive_memory in a batch", nexus_job_outcome="completed")
    eventually(lambda: len(collector.named("nexus.ingest")) == 2, within=LONG)
    traces = {span.trace for span in collector.named("nexus.ingest")}
    assert {run.trace, aside.trace} == traces
    assert run.links == (aside.trace,)
    assert aside.links == (run.trace,)
    assert run.attributes["nexus.job.id"] != aside.attributes["nexus.job.id"]


@pytest.mark.long
def test_a_rerun_is_in_the_trace_of_the_call_that_asked_for_it(here: Sandbox, collector: Collector) -> None:
    here.worker(*WITH_KINDS, concurrency=2, **ROOT)
    first = play(here, "plan=('hold', 'ok')", around="a span")
    eventually(attempts, within=LONG)
    second = play(here, "plan=('hold', 'ok')", around="a span")
    (here.deployment.settings.home / "go-a").touch()
    eventually(lambda: len(collector.named("play", nexus_job_outcome="completed")) == 2, within=LONG)
    eventually(lambda: len(collector.named("a request")) == 2, within=LONG)
    asked = sorted(collector.named("a request"), key=lambda span: span.began)
    runs = [one(collector.named("play", nexus_job_id=job_id)) for job_id in (first, second)]
    assert [run.parent for run in runs] == [span.id for span in asked]


SECRET, TEXT = "sk-ant-api03-PLANTED", "quokkas"


@pytest.mark.long
@BOTH_POOLS
def test_no_text_no_name_and_no_secret_is_exported(here: Sandbox, collector: Collector, pool: str) -> None:
    """Of messages, of queries, of failed calls, and of failing jobs."""
    (here.folder / "leaky.py").write_text(
        f"""
from typing import ClassVar
from nexus_tasks.jobs import Arguments, JobOutcome, Permanent, Run, Transient, Wait, job
class Leak(Arguments):
    scope: ClassVar = ("namespace", "how")
    namespace: str
    how: str
@job(arguments=Leak, queue="maintenance")
def leak(run: Run, arguments: Leak) -> JobOutcome:
    said = "{TEXT} {SECRET}"
    if arguments.how == "wait":
        raise Wait("ripeness", 60.0, said)
    raise {{"bug": ValueError, "permanent": Permanent, "transient": Transient}}[arguments.how](said)
"""
    )
    here.environment |= {"PYTHONPATH": str(here.folder), "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}"}
    here.worker("--include", "leaky", pool=pool, concurrency=2)
    produce(
        here,
        f"""
from nexus_tasks import Message, Nexus
from nexus_tasks.errors import NexusError
from leaky import leak
said = "I keep {TEXT} and my key is {SECRET}"
nexus = Nexus()
nexus.ingest("{TEXT}", "{TEXT}", [Message(content=said, author="{TEXT}", id="{TEXT}")], end=True)
nexus.remember("{TEXT}", said, author="{TEXT}")
nexus.search("{TEXT}", said)
nexus.context("{TEXT}", session_key="{TEXT}", query=said)
for how in ("bug", "permanent", "transient", "wait"):
    leak.delay(namespace="{TEXT}", how=how)
for wrong in (lambda: nexus.search("{TEXT}", said, limit=said), lambda: nexus.end_session(said, said)):
    try:
        wrong()
    except NexusError:
        pass
""",
        PYTHONPATH=str(here.folder),
    )
    names = ("nexus.ingest", "nexus.remember", "nexus.search", "nexus.context", "nexus.end_session", "digest_session")
    for name in names:
        eventually(lambda n=name: collector.named(n), within=LONG, why=name)
    kind = "leaky.leak"
    for reason in ("ripeness", "retry"):
        eventually(lambda r=reason: collector.named(kind, nexus_wait_reason=r), within=LONG)
    eventually(lambda: collector.named(kind, nexus_job_outcome="dead", error_type="Permanent"), within=LONG)
    assert b"Permanent" in collector.raw, "the bytes are those of the spans"
    for planted in (TEXT, SECRET, here.database_url):
        assert planted.encode() not in collector.raw


@pytest.mark.long
@BOTH_POOLS
def test_a_collector_that_hangs_delays_neither_jobs_nor_the_end_of_a_process(
    here: Sandbox, collector: Collector, pool: str
) -> None:
    collector.hangs.set()
    worker = here.worker(pool=pool, concurrency=2)
    started = time.monotonic()
    produce(here, INGEST)
    assert time.monotonic() - started < 15, "the producer ends"
    done = "SELECT count(*) FROM job_runs WHERE status = 'completed'"
    eventually(lambda: here.sql(done)[0][0] >= 3, within=LONG)
    started = time.monotonic()
    worker.stop()
    assert time.monotonic() - started < 15
    assert worker.process.returncode == 0


@pytest.mark.long
@BOTH_POOLS
def test_spans_that_were_not_sent_yet_are_sent_when_a_worker_ends(
    here: Sandbox, collector: Collector, pool: str
) -> None:
    here.environment["OTEL_BSP_SCHEDULE_DELAY"] = "600000"
    worker = here.worker(pool=pool, concurrency=2)
    produce(here, INGEST)
    done = "SELECT count(*) FROM job_runs WHERE status = 'completed'"
    eventually(lambda: here.sql(done)[0][0] >= 3, within=LONG)
    time.sleep(1)
    assert not collector.named("digest_session")
    assert collector.named("nexus.ingest"), "the producer has sent its own at its end"
    worker.stop()
    assert waited(collector, "digest_session").trace == one(collector.named("nexus.ingest")).trace


INSTRUMENTED = """
from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
CeleryInstrumentor().instrument()
"""


@pytest.mark.long
@BOTH_POOLS
def test_beside_the_instrumentation_of_celery_each_span_comes_once_and_in_the_same_trace(
    here: Sandbox, collector: Collector, pool: str
) -> None:
    pytest.importorskip("opentelemetry.instrumentation.celery")
    (here.folder / "instrumented.py").write_text(INSTRUMENTED)
    here.environment["PYTHONPATH"] = f"{here.folder}:{ROOT['PYTHONPATH']}"
    here.worker("--include", f"instrumented,{WITH_KINDS[1]}", pool=pool, concurrency=2)
    produce(
        here,
        "import instrumented\n" + INGEST + "from tests.integration.jobkinds import play\n"
        "with instrumented.trace.get_tracer('app').start_as_current_span('a request'):\n"
        "    play.delay(plan=('transient', 'ok'))\n",
        PYTHONPATH=here.environment["PYTHONPATH"],
    )
    digest = waited(collector, "digest_session", nexus_job_outcome="completed")
    played = waited(collector, "play", nexus_job_outcome="completed")
    request, ingest = waited(collector, "a request"), waited(collector, "nexus.ingest")
    eventually(lambda: len(collector.named("run/nexus_tasks.play")) == 2, within=LONG)
    assert {span.trace for span in collector.spans} == {ingest.trace, request.trace}
    known = {span.id: span for span in collector.spans}
    assert all(span.parent in known for span in collector.spans if span.parent), "no parent is missing"
    assert len(known) == len(collector.spans)
    assert known[digest.parent].name == "run/nexus_tasks.digest_session"
    assert {known[span.parent].name for span in collector.named("play")} == {"run/nexus_tasks.play"}
    assert played.trace == request.trace


OFF = [{"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}]


@pytest.mark.parametrize("off", OFF)
def test_without_an_exporter_no_span_is_made(here: Sandbox, collector: Collector, off: dict[str, str]) -> None:
    code = INGEST + "from nexus_tasks.tracing import provider\nprint(provider.tracer(), provider._own.made)"
    assert produce(here, code, **off).split() == ["None", "None"]
    assert collector.spans == []


def test_without_the_sdk_the_variables_cost_no_call(here: Sandbox) -> None:
    code = "import sys; sys.modules |= {'opentelemetry': None, 'opentelemetry.sdk': None}\n" + INGEST + "print('ok')"
    assert produce(here, code) == "ok\n"


@pytest.mark.long
def test_a_wrong_variable_costs_no_job_and_is_said_once(here: Sandbox) -> None:
    here.environment["OTEL_TRACES_EXPORTER"] = "nonsense"
    worker = here.worker(concurrency=2)
    produce(here, INGEST)
    done = "SELECT count(*) FROM job_runs WHERE status = 'completed'"
    eventually(lambda: here.sql(done)[0][0] >= 3, within=LONG)
    assert worker.text().count("no installed package has the exporter nonsense. Correct the OTEL_* variables.") == 1
