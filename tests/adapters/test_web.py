"""The examples with FastAPI and Django: real Celery projects that also run our jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy import make_url

from nexus_tasks import Nexus
from nexus_tasks.embedded.urls import celery_url
from tests.adapters.frameworks import needs
from tests.integration.test_examples import FOLDER, environment_of, worker
from tests.rabbitmq import free_ports
from tests.sandbox import Sandbox, eventually

needs("django")
needs("fastapi")

pytestmark = pytest.mark.long
QUEUES = ("celery", "derive", "digest", "reflect", "capture", "maintenance", "urgent")


@pytest.fixture
def broker(here: Sandbox) -> Iterator[str]:
    """The Redis of all tests, with the queues of the example's application: deleted afterwards."""
    yield celery_url(here.servers.redis_url)
    for key in QUEUES:
        here.redis().delete(key, f"_kombu.binding.{key}")


def test_a_fastapi_service_stores_and_finds(here: Sandbox, broker: str) -> None:
    environment = environment_of(here, CHAT_BROKER_URL=broker)
    url = f"http://127.0.0.1:{(port := free_ports(1)[0])}"
    command = [sys.executable, "-m", "uvicorn", "fastapi_app:api", "--port", str(port), "--log-level", "warning"]
    with worker("fastapi_app:celery", here.folder, environment) as log:
        server = subprocess.Popen(command, env=environment, cwd=here.folder)
        try:

            def said() -> bool:
                try:
                    told = httpx2.post(f"{url}/chats/1", json={"user": "ann", "text": "I moved to Lisbon."})
                except httpx2.ConnectError:
                    return False
                return told.status_code == 200

            eventually(said)
            ask = {"query": "where does ann live?"}
            found = eventually(lambda: httpx2.get(f"{url}/facts", params=ask).json(), why=log.read_text())
            assert "Lisbon" in found[0]
        finally:
            server.kill()
            server.wait()


ORDERS = """
import django
django.setup()
from django.db import transaction
from shop.models import Order
with transaction.atomic():
    Order.objects.create(customer="ann", text="I order green tea every month.")
try:
    with transaction.atomic():
        Order.objects.create(customer="ben", text="I order coffee every month.")
        raise RuntimeError
except RuntimeError:
    pass
# As after a crash between the commit and the request for the job: the row alone wants it.
Order.objects.bulk_create([Order(customer="cleo", text="I order cocoa every month.")])
"""
WITHOUT_REDIS = """
import django
django.setup()
from shop.models import Order
Order.objects.create(customer="dora", text="I order mint every month.")
"""
LEFT = """
import django
django.setup()
from shop.models import Order
print(Order.objects.filter(wants_memory=True).count())
"""


def test_a_django_models_save_is_remembered_if_its_transaction_commits(here: Sandbox, broker: str) -> None:
    nexus = Nexus(here.deployment)
    nexus.create_namespace("django-shop")
    environment = environment_of(
        here,
        SHOP_BROKER_URL=broker,
        SHOP_DATABASE=str(here.folder / "shop.sqlite3"),
        DJANGO_SETTINGS_MODULE="shop.settings",
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER / "django_shop"), environment["PYTHONPATH"]])

    def django(*arguments: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment | variables,
            cwd=here.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    expected = {f"I order {what} every month." for what in ("green tea", "cocoa", "mint")}
    django(str(FOLDER / "django_shop" / "manage.py"), "migrate", "--verbosity", "0")
    with worker("shop", here.folder, environment) as log:
        django("-c", ORDERS)
        # The order is stored, so its caller gets no error. The job is asked for later.
        django("-c", WITHOUT_REDIS, NEXUS_REDIS_URL=f"redis://127.0.0.1:{free_ports(1)[0]}/0")

        def known() -> bool:
            facts = {fact.content for fact in nexus.memories("django-shop", levels=["explicit"])}
            return expected <= facts

        eventually(known, why=log.read_text())
        eventually(lambda: django("-c", LEFT).strip() == "0")
    said = {memory.content for memory in nexus.memories("django-shop", levels=["raw"])}
    assert said == expected


ON_POSTGRES = """
from shop.settings import *
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": %r, "USER": %r, "HOST": %r, "PORT": %r}}
"""


def test_a_django_outbox_is_read_again_after_its_database_has_closed_the_connections(
    here: Sandbox, broker: str
) -> None:
    """As when the database restarts. The thread that reads the outbox runs no task, so Celery closes no connection."""
    nexus = Nexus(here.deployment)
    nexus.create_namespace("django-shop")
    address = make_url(here.database_url)
    place = (address.database, address.username, address.query["host"], address.query.get("port", ""))
    (here.folder / "shop_on_postgres.py").write_text(ON_POSTGRES % place)
    environment = environment_of(here, SHOP_BROKER_URL=broker, DJANGO_SETTINGS_MODULE="shop_on_postgres")
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER / "django_shop"), str(here.folder), environment["PYTHONPATH"]]
    )
    manage = [sys.executable, str(FOLDER / "django_shop" / "manage.py"), "migrate", "--verbosity", "0"]
    subprocess.run(manage, env=environment, cwd=here.folder, timeout=120, check=True)

    def order(what: str) -> None:
        here.sql(
            "INSERT INTO shop_order (customer, text, wants_memory) VALUES ('cleo', :text, true)",
            text=f"I order {what} every month.",
        )

    def remembered() -> bool:
        return here.sql("SELECT 1 FROM shop_order WHERE wants_memory") == []

    with worker("shop", here.folder, environment) as log:
        order("cocoa")
        eventually(remembered, within=60, why=log.read_text())
        here.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        order("mint")
        eventually(remembered, within=60, why=log.read_text())
