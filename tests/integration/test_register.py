"""``register(app)``: our jobs in a Celery application of somebody else's, which stays as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from celery import Celery

import nexus_tasks
from nexus_tasks import Nexus, config, derive_memory
from nexus_tasks.deployment import WORKER_STEPS, Deployment, default_deployment
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.idempotency.task import NOT_ANNOTATED
from nexus_tasks.settings import load_settings
from tests.broker import RABBITMQ
from tests.integration.claiming import Bench
from tests.integration.inline import due_at_once
from tests.integration.jobkinds import ROOT, Play, attempts, go, play
from tests.sandbox import Sandbox, Worker, engine, eventually

pytestmark = pytest.mark.skipif(RABBITMQ, reason="the shop's own broker is Redis")

NAMESPACE = "acme"

# An application with habits of its own: it says what is on its wire, registers before it is configured, is configured
# in several ways, keeps a thread, and has an entry of beat's that is called like one of ours.
SHOP = """
import json, os, threading, time
from celery import Celery
from celery.schedules import crontab
from kombu.serialization import register as serializer

import nexus_tasks

serializer(
    "shop", lambda data: "shop:" + json.dumps(data), lambda text: json.loads(text[5:]), "application/x-shop", "utf-8"
)

app = Celery("shop")
nexus_tasks.register(app)


class Config:
    broker_url = result_backend = os.environ["SHOP_REDIS"]
    broker_transport_options = {"global_keyprefix": os.environ["NEXUS_KEY_PREFIX"] + ":shop:"}
    task_default_queue = "shop"
    task_routes = {"shop.special": {"queue": "special"}, "*": {"queue": "shop", "priority": 3}}
    beat_schedule = {
        "prune": {"task": "shop.prune", "schedule": crontab(minute="*")},
        "nexus_tasks.dream_due": {"task": "nexus_tasks.dream_due", "schedule": 0.5},
    }
    imports = ("tests.integration.jobkinds",)


app.config_from_object(Config)
app.conf.update(json.loads(os.environ.get("SHOP_CONF", "{}")))
app.autodiscover_tasks(["orders"])


@app.task(name="shop.add")
def add(a, b):
    return a + b


threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()
"""

ORDERS = """
from celery import shared_task


@shared_task(name="shop.refund")
def refund(a):
    return -a
"""

OWN_SERIALIZER = {
    "task_serializer": "shop",
    "result_serializer": "shop",
    "accept_content": ["shop"],
    "worker_prefetch_multiplier": 4,
}
# None of these suits our jobs.
HOSTILE = {
    "result_backend": None,
    "task_acks_late": False,
    "task_ignore_result": False,
    "task_create_missing_queues": False,
    "task_annotations": {
        "*": {
            "acks_late": False,
            "ignore_result": False,
            "max_retries": 0,
            "time_limit": 3,
            "soft_time_limit": 2,
            "expires": 1,
            "track_started": True,
            "typing": True,
        }
    },
    "task_time_limit": 3,
    "task_soft_time_limit": 2,
    "task_default_rate_limit": "1000/s",
}


@pytest.fixture
def shop(here: Sandbox) -> Iterator[Sandbox]:
    """A sandbox with the shop's module; its broker is another database of the run's Redis."""
    (here.folder / "shop.py").write_text(SHOP)
    (here.folder / "orders").mkdir()
    (here.folder / "orders" / "tasks.py").write_text(ORDERS)
    url = here.deployment.endpoints.broker_url.replace("virtual_host=0", "virtual_host=1")
    assert "virtual_host=1" in url
    here.environment |= {**ROOT, "SHOP_REDIS": url}
    yield here
    for worker in here.workers:
        worker.kill()
    redis = here.redis()
    redis.connection_pool.connection_kwargs["db"] = 1
    for key in redis.scan_iter(f"{here.name}:*"):
        redis.delete(key)


def start(shop: Sandbox, conf: Mapping[str, Any], **options: Any) -> Worker:
    return shop.worker(app="shop", SHOP_CONF=json.dumps(conf), **options)


def python(shop: Sandbox, code: str, conf: Mapping[str, Any] = OWN_SERIALIZER, *arguments: str) -> Any:
    """What a fresh process prints as JSON."""
    command = [sys.executable, *(arguments or ("-c", f"import json, nexus_tasks\n{code}"))]
    done = subprocess.run(
        command,
        cwd=shop.folder,
        env={**shop.environment, "SHOP_CONF": json.dumps(conf)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if not arguments else done.stdout


PRODUCE = """
import shop
from nexus_tasks import Nexus
Nexus().ingest("acme", "chat", [{"content": "I live in Lisbon.", "author": "ann"}], end=True)
from orders.tasks import refund
asked = [shop.add.delay(2, 3), refund.delay(4)]
print(json.dumps([one.get(timeout=40) for one in asked] if shop.app.conf.result_backend else []))
"""


def digested(here: Sandbox) -> bool:
    return here.sql("SELECT count(*) FROM memories WHERE level = 'summary_short'") == [(1,)]


def counts(here: Sandbox) -> Mapping[str, int]:
    return here.deployment.claims.counts(NAMESPACE)


@pytest.mark.long
def test_its_workers_run_our_jobs_beside_its_own(shop: Sandbox) -> None:
    worker = start(shop, OWN_SERIALIZER)
    beat = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "shop", "beat", "-s", str(shop.folder / "beat")],
        cwd=shop.folder,
        env={**shop.environment, "SHOP_CONF": json.dumps(OWN_SERIALIZER)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert python(shop, PRODUCE) == [5, -4]
        eventually(lambda: digested(shop), within=30)
        assert shop.sql("SELECT content FROM memories WHERE level = 'explicit'") == [("I live in Lisbon.",)]
        eventually(lambda: counts(shop) == {}, within=30)
        assert shop.sql("SELECT count(*) FROM dead_letters") == [(0,)]
        eventually(lambda: shop.redis().keys(f"{shop.name}:tick:dream_due:*"), within=30, why="no tick of ours ran")
    finally:
        beat.kill()
        beat.wait()
    assert not shop.redis().keys(f"{shop.name}:celery:*"), "a message was sent to a broker that is not the shop's"
    registered = python(shop, "", OWN_SERIALIZER, "-m", "celery", "-A", "shop", "inspect", "registered")
    assert "shop.add" in registered
    assert "nexus_tasks.derive_memory" in registered
    assert "nexus_tasks.dream_due" in registered
    crashed_twice_runs_in_its_own_process(worker)
    assert "Signal handler" not in worker.text()
    assert "Traceback" not in worker.text(), worker.text()[worker.text().index("Traceback") :]


def crashed_twice_runs_in_its_own_process(worker: Worker) -> None:
    """The shop's worker has a thread, so its fork server is started by the import path of its application."""
    Nexus().create_namespace("other")
    asked = play.apply_async(kwargs={"namespace": "other", "name": "twice"}, countdown=60)
    bench = Bench(engine.claims)
    bench.set(play.request_for(Play(namespace="other", name="twice")), crashes=2)
    bench.client.zadd(f"{engine.claims.prefix}:due", {claim.key: 0 for claim in engine.claims.waiting()})
    assert asked.wait(40).status == "completed"
    [(pid, _)] = attempts("twice")
    assert pid != worker.process.pid


@pytest.mark.long
def test_its_sweep_recovers_a_job_whose_worker_was_killed(shop: Sandbox) -> None:
    shop.environment["NEXUS_LEASE_SECONDS"] = "1.5"
    workers = [start(shop, {}, concurrency=2) for _ in range(2)]
    produce = (
        'import shop\nfrom tests.integration.jobkinds import play\nprint(int(play.delay(plan=("hold", "ok")).created))'
    )
    assert python(shop, produce, {}) == 1
    [(pid, _)] = eventually(attempts, within=40)
    next(one for one in workers if one.process.pid == pid).kill()
    eventually(lambda: counts(shop) == {}, within=40)
    assert len(attempts()) == 2
    assert shop.sql("SELECT count(*) FROM dead_letters") == [(0,)]


@pytest.mark.long
def test_in_a_prefork_pool_whatever_its_settings_are(shop: Sandbox) -> None:
    conf = {**HOSTILE, "broker_url": shop.deployment.endpoints.broker_url}  # one Redis for claims and messages
    worker = start(shop, conf, pool="processes", concurrency=2)
    python(shop, PRODUCE, conf)
    eventually(lambda: digested(shop), within=30)
    code = """
import shop
from nexus_tasks import Nexus
from tests.integration.jobkinds import play
asked = play.delay(name="long", plan=("hold",))
Nexus().ingest("acme", "later", [{"content": "I like tea.", "author": "ann"}] * 9)
print(json.dumps(Nexus().dream("acme").created))
"""
    assert python(shop, code, conf) is True
    eventually(lambda: attempts("long"))
    began = time.monotonic()
    eventually(lambda: (due_at_once(shop), shop.sql("SELECT state FROM dreams") == [("finished",)])[1], within=40)
    eventually(lambda: time.monotonic() > began + 3.5)  # longer than the shop's tasks may take
    go("long")
    eventually(lambda: counts(shop) == {}, within=30)
    assert len(attempts("long")) == 1
    assert shop.sql("SELECT count(*) FROM dead_letters") == [(0,)]
    assert "Signal handler" not in worker.text()


SAME = """
from celery import Celery
from celery.app.defaults import DEFAULTS
def settings(app):
    return {name: repr(app.conf[name]) for name in DEFAULTS if name != "beat_schedule"}
def build(main):
    app = Celery(main, set_as_current=False)
    return app
class Config:
    task_serializer, accept_content, task_default_queue = "yaml", ["yaml", "json"], "shop"
    broker_transport_options = {"global_keyprefix": "shop:"}
    result_backend = "redis://results"
    task_routes = {"shop.*": {"queue": "orders"}}
    beat_schedule = {"mine": {"task": "shop.add", "schedule": 5.0}}
apps = [build("shop"), build("other")]
for app in apps:
    app.task(name="shop.add", rate_limit="1/s", serializer="json")(build)
"""


@pytest.mark.parametrize("early", [False, True], ids=["configured before", "finalized before"])
@pytest.mark.long
def test_its_own_settings_and_tasks_stay_as_they_are(here: Sandbox, early: bool) -> None:
    here.environment |= ROOT
    code = f"""{SAME}
shop, other = apps
if {early}:
    shop.finalize()
nexus_tasks.register(shop)
for app in apps:
    app.config_from_object(Config)
    app.loader.init_worker()
print(json.dumps({{
    "same": settings(shop) == settings(other),
    "beat": [sorted(app.conf.beat_schedule) for app in apps],
    "config": sorted(Config.beat_schedule),
    "queues": [sorted(app.amqp.queues.consume_from) for app in apps],
    "tasks": [sorted(name for name in app.tasks if name.startswith("nexus")) for app in apps],
    "steps": [len(app.steps["worker"]) for app in apps],
    "options": [[app.tasks["shop.add"].rate_limit, app.tasks["shop.add"].serializer] for app in apps],
}}))
"""
    found = python(here, code)
    ours = sorted(f"nexus_tasks.{name}" for name in config.beat_schedule)
    assert found["same"] is True
    assert found["beat"] == [["mine", *ours], ["mine"]]
    assert found["config"] == ["mine"]
    assert found["queues"] == [sorted(["shop", *config.QUEUES]), ["shop"]]
    assert set(ours) | {"nexus_tasks.derive_memory"} <= set(found["tasks"][0])
    assert found["tasks"][1] == []
    assert found["steps"] == [len(WORKER_STEPS), 0]
    assert found["options"] == [["1/s", "json"]] * 2


def test_a_worker_of_an_application_that_never_registered_is_left_alone(here: Sandbox) -> None:
    (here.folder / "other.py").write_text(
        "import os, nexus_tasks.celery\nfrom celery import Celery\n"
        "app = Celery('other', broker=os.environ['OTHER'])\n"
        "app.conf.broker_transport_options = {'global_keyprefix': os.environ['NEXUS_KEY_PREFIX'] + ':other:'}\n"
    )
    worker = here.worker(app="other", concurrency=1, OTHER=here.deployment.endpoints.broker_url, **ROOT)
    assert "derive" not in worker.text()
    assert "Signal handler" not in worker.text()
    assert {key.split(":")[1] for key in here.redis().keys(f"{here.name}:*")} == {"other"}


@pytest.mark.long
def test_a_worker_says_at_its_start_that_no_job_can_run(shop: Sandbox) -> None:
    for app in ("nexus_tasks", "shop"):
        worker = shop.worker(app=app, concurrency=1, NEXUS_EMBEDDER="nonsense")
        assert "No job can run yet: There is no embedder named 'nonsense'" in worker.text()
        worker.kill()


@pytest.mark.long
def test_registering_twice_is_an_error_that_says_so(here: Sandbox) -> None:
    here.environment |= ROOT
    code = """
from celery import Celery
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.idempotency.task import NOT_ANNOTATED
from nexus_tasks.settings import load_settings
said = []
def attempt(*arguments):
    try:
        nexus_tasks.register(*arguments)
        said.append("registered")
    except ConfigurationError as error:
        said.append(str(error))
app, late = Celery("shop"), Celery("late")
for arguments in ((app,), (app,), (app, load_settings()), (late,), (late, load_settings())):
    attempt(*arguments)
print(json.dumps(said))
"""
    first, again, with_settings, late, other = python(here, code)
    assert (first, other) == ("registered", "registered")
    assert again == with_settings
    assert again.startswith("The Celery application 'shop' has the jobs of a deployment already.")
    assert late.startswith("The default deployment has a Celery application already. Call register(app) before")


def test_registering_with_settings_leaves_the_default_alone(here: Sandbox) -> None:
    app = Celery("shop", broker=here.deployment.endpoints.broker_url, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": f"{here.name}:shop:"}
    with pytest.raises(ConfigurationError, match="default deployment"):
        nexus_tasks.register(app)
    deployment = nexus_tasks.register(app, load_settings().model_copy(update={"key_prefix": f"{here.name}-shop"}))
    try:
        assert default_deployment() is here.deployment is not deployment
        Nexus(deployment).ingest(NAMESPACE, "chat", [{"content": "I live in Lisbon.", "author": "ann"}], end=True)
        assert deployment.app is app
        assert here.redis().llen(f"{here.name}:shop:derive") == 1
        assert deployment.claims.counts(NAMESPACE)["pending"] >= 1
        assert here.deployment.claims.counts(NAMESPACE) == {}
        assert not here.redis().keys(f"{here.name}:celery:*")
    finally:
        deployment.close()
        for key in here.redis().scan_iter(f"{here.name}-shop:*"):
            here.redis().delete(key)


def test_messages_without_headers_are_refused_before_a_claim_is_made(here: Sandbox) -> None:
    app = Celery("shop", broker=here.deployment.endpoints.broker_url, set_as_current=False)
    app.conf.task_protocol = 1
    deployment = nexus_tasks.register(app, load_settings().model_copy(update={"key_prefix": f"{here.name}-shop"}))
    try:
        for options in ({}, {"ignore_result": False}):
            with pytest.raises(ConfigurationError, match="task_protocol 1"):
                derive_memory.on(deployment).apply_async(kwargs={"namespace": NAMESPACE, "memory_id": 1}, **options)
        assert deployment.claims.counts(NAMESPACE) == {}
    finally:
        deployment.close()


def test_no_annotation_for_all_tasks_lets_a_job_expire_or_end_early(here: Sandbox) -> None:
    """Celery would count an expired message as revoked, and the worker would drop its job."""
    app = Celery("shop", broker=here.deployment.endpoints.broker_url, set_as_current=False)
    annotations = HOSTILE["task_annotations"]["*"]
    app.conf.task_annotations = {"*": {**annotations, "rate_limit": "5/s"}}
    deployment = nexus_tasks.register(app, load_settings().model_copy(update={"key_prefix": f"{here.name}-shop"}))
    try:
        task, usual = app.tasks["nexus_tasks.derive_memory"], here.deployment.app.tasks["nexus_tasks.derive_memory"]
        assert task.rate_limit == "5/s"
        assert task.ignore_result is False
        for name in NOT_ANNOTATED:
            assert getattr(task, name, None) == getattr(usual, name, None), name
    finally:
        deployment.close()


def test_a_worker_is_found_by_its_applications_import_path(monkeypatch: pytest.MonkeyPatch, here: Sandbox) -> None:
    app = Celery("shop", set_as_current=False)
    deployment = Deployment(here.deployment.settings, app=app)
    with pytest.raises(ConfigurationError, match="not a global variable"):
        deployment.app_path()
    from celery import _state

    monkeypatch.setattr(_state, "default_app", app)  # as `app.set_default()` does
    with pytest.raises(ConfigurationError, match="not a global variable"):
        deployment.app_path()
    module = type(sys)("shop_of_a_test")
    module.celery_app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_of_a_test", module)
    assert deployment.app_path() == "shop_of_a_test:celery_app"
