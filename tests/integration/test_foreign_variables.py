"""Variables that a user has set for other programs, and settings that a database has for others, break nothing here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nexus_tasks import Nexus
from nexus_tasks.cli.checks.postgres import postgres
from nexus_tasks.cli.stack.processes import environment
from nexus_tasks.endpoints import endpoints_of
from nexus_tasks.errors import ConfigurationError, StorageMisconfigured
from nexus_tasks.settings import Settings
from nexus_tasks.storage import schema
from tests import databases
from tests.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
SAID = "Ann drinks tea in 東京 🌍."

# What Celery needs of Django when it makes an application.
DJANGO = {"__init__.py": "VERSION = (5, 2)\n", "conf.py": "settings = None\n"}
MAKES_THE_APP = """
import sys, nexus_tasks.deployment
nexus_tasks.deployment.default_deployment().app
print(sys.path)
import not_installed
"""


@pytest.mark.parametrize(
    "variable", ["PGPORT=1", "PGCHANNELBINDING=require", "PGCLIENTENCODING=LATIN1", "PGDATESTYLE=German"]
)
def test_the_embedded_postgres_is_reached_whatever_libpq_is_told(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(*variable.split("="))
    with here.another():
        assert Nexus().ingest("acme", "chat", [{"content": SAID}]).stored == 1
        assert [found.content for found in Nexus().memories("acme")] == [SAID]


def test_a_variable_that_leads_to_another_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEXUS_DATABASE_URL", "NEXUS_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    with pytest.raises(ConfigurationError, match="PGHOSTADDR"):
        endpoints_of(Settings(home=tmp_path / "home"))
    assert not (tmp_path / "home").exists()


def test_a_service_that_is_not_defined_is_no_outage(
    here: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSERVICE", "not-defined")
    monkeypatch.setenv("PGSERVICEFILE", os.fspath(tmp_path / "none"))
    with here.another(), pytest.raises(StorageMisconfigured, match="service file"):
        Nexus().ingest("acme", "chat", [{"content": SAID}])


@pytest.mark.parametrize(
    "setting",
    ["datestyle = 'German'", "datestyle = 'SQL, DMY'", "intervalstyle = 'iso_8601'"]
    + [f"client_encoding = '{name}'" for name in ("LATIN1", "SQL_ASCII")],
)
def test_formats_and_encodings_of_a_database_do_not_count(here: Sandbox, setting: str) -> None:
    here.sql(f"ALTER DATABASE {here.database_name} SET {setting}")
    try:
        with here.another():
            assert Nexus().ingest("acme", "chat", [{"content": SAID}]).stored == 1
            assert [found.content for found in Nexus().memories("acme")] == [SAID]
    finally:
        here.sql(f"ALTER DATABASE {here.database_name} RESET ALL")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_new_database_of_another_encoding_is_refused(here: Sandbox, encoding: str) -> None:
    name = f"{here.name}_old".lower()
    how = f"ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
    databases.administer(here.servers, f"CREATE DATABASE {name} {how}")
    url = databases.url(here.servers, name)
    try:
        with pytest.raises(StorageMisconfigured, match=encoding):
            schema.upgrade(url)
        assert schema.versions(url)[0] is None
        assert [check.found for check in postgres(url) if check.name == "postgres encoding"] == [
            f"{encoding}, which cannot keep every character"
        ]
    finally:
        databases.administer(here.servers, f"DROP DATABASE {name}")


def test_a_django_project_in_the_folder_runs_no_code(here: Sandbox, tmp_path: Path) -> None:
    library, project = tmp_path / "library", tmp_path / "project"
    (library / "django").mkdir(parents=True)
    project.mkdir()
    for name, text in DJANGO.items():
        (library / "django" / name).write_text(text)
    (project / "not_installed.py").write_text("print('code of the folder ran')\n")
    variables = {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": f"{ROOT}{os.pathsep}{library}"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", MAKES_THE_APP],
        env={**here.environment, **variables},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert os.fspath(project) not in done.stdout, done.stdout
    assert "No module named 'not_installed'" in done.stderr


def test_the_stack_leaves_out_a_django_project_that_it_cannot_import(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = here.deployment.settings
    for name, stays in (("no_such_shop.settings", False), ("json.decoder", True), ("..", False)):
        monkeypatch.setenv("DJANGO_SETTINGS_MODULE", name)
        assert ("DJANGO_SETTINGS_MODULE" in environment(settings)) == stays
