"""What importing the package costs and does, and what is in its public surface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nexus_tasks


def python(code: str, cwd: Path, **environment: str) -> str:
    """The output of a fresh interpreter; it has no home to write to."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "NEXUS_HOME": str(cwd / "home"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_resolves() -> None:
    for name in nexus_tasks.__all__:
        assert getattr(nexus_tasks, name) is not None
    assert set(nexus_tasks.__all__) <= set(dir(nexus_tasks))


def test_every_job_kind_that_a_producer_may_ask_for_is_public() -> None:
    kinds = ("derive_memory", "digest_session", "embed_memories", "observe_session")
    for kind in (*kinds, "reflect_namespace", "reflect_observations", "reflect_perspective"):
        assert getattr(nexus_tasks, kind).name == f"nexus_tasks.{kind}"


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = "{'celery', 'sqlalchemy', 'redis', 'anthropic', 'pydantic', 'numpy'}"
    assert python(f"import sys, nexus_tasks; print({heavy} & set(sys.modules))", tmp_path) == "set()\n"


def test_importing_everything_starts_nothing(tmp_path: Path) -> None:
    code = (
        "import nexus_tasks, nexus_tasks.tasks, nexus_tasks.client, nexus_tasks.config;"
        "nexus_tasks.app; nexus_tasks.derive_memory; nexus_tasks.Nexus(); print('ok')"
    )
    assert python(code, tmp_path) == "ok\n"
    assert not (tmp_path / "home").exists()


def test_the_deployments_settings_start_nothing_and_are_the_packages_own(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text((Path(__file__).parents[2] / "celeryconfig.py").read_text())
    code = (
        "import celeryconfig, nexus_tasks.config as ours;"
        "print(all(getattr(celeryconfig, n) == getattr(ours, n) for n in ours.__all__));"
        "import nexus_tasks; print(nexus_tasks.app.conf.worker_pool)"
    )
    assert python(code, tmp_path) == "True\nthreads\n"
    assert not (tmp_path / "home").exists()


def test_only_one_of_two_addresses_is_an_error(tmp_path: Path) -> None:
    code = (
        "from nexus_tasks.settings import load_settings\n"
        "try: load_settings()\n"
        "except Exception as error: print(type(error).__name__, 'hunter2' in repr(error), error)"
    )
    said = python(code, tmp_path, NEXUS_DATABASE_URL="postgresql://nexus:hunter2@db/nexus")
    assert said.startswith("ConfigurationError False NEXUS_REDIS_URL is not set")


def test_a_setting_that_does_not_parse_is_named(tmp_path: Path) -> None:
    code = (
        "from nexus_tasks.settings import load_settings\ntry: load_settings()\nexcept Exception as error: print(error)"
    )
    assert "NEXUS_MAX_ATTEMPTS" in python(code, tmp_path, NEXUS_MAX_ATTEMPTS="many")


def test_a_celeryconfig_needs_only_what_it_changes(tmp_path: Path) -> None:
    (tmp_path / "practice.py").write_text("print('practice is imported')\n")
    (tmp_path / "celeryconfig.py").write_text("imports = ['practice']\ntask_track_started = False\n")
    code = (
        "import os; os.environ['CELERY_CONFIG_MODULE'] = 'celeryconfig';"
        "import nexus_tasks, nexus_tasks.config as ours; conf = nexus_tasks.app.conf;"
        "print([n for n in ours.__all__ if getattr(conf, n) != getattr(ours, n)]); print(list(conf.imports));"
        "nexus_tasks.app.loader.import_default_modules()"
    )
    names = "['imports', 'task_track_started']\n['nexus_tasks.tasks', 'nexus_tasks.worker', 'practice']\n"
    assert python(code, tmp_path) == names + "practice is imported\n"


def test_a_celeryconfig_that_fails_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("import os\nos.nonesuch\n")
    code = (
        "import os; os.environ['CELERY_CONFIG_MODULE'] = 'celeryconfig'; import nexus_tasks\n"
        "try: nexus_tasks.app.conf.worker_pool\n"
        "except ImportError as error: print(error)"
    )
    assert "nonesuch" in python(code, tmp_path)
