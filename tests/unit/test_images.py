"""The image and the services of docker-compose.yml: which files reach a layer, and passwords with any characters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import redis
import yaml
from pydantic import SecretStr

from nexus_tasks.deployment import pool_size
from nexus_tasks.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def test_only_named_files_reach_a_layer() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*", "everything is left out first"
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert kept == {name for names in copied for name in names.split()}
    assert all((ROOT / name).exists() for name in kept)
    assert "COPY . " not in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("password", ["p@:/%41", "a%b?c#d", "[x]&=+ ;'\"$"])
def test_the_entry_point_makes_a_url_of_any_redis_password(password: str, tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "REDIS_PASSWORD": password}
    command = ["sh", str(ROOT / "docker-entrypoint.sh"), "sh", "-c", 'printf %s "$NEXUS_REDIS_URL"']
    url = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    settings = Settings(database_url=SecretStr("postgresql://nexus@postgres/nexus"), redis_url=SecretStr(url))
    assert settings.redis_url is not None
    given = redis.ConnectionPool.from_url(settings.redis_url.get_secret_value()).connection_kwargs
    assert (given["password"], given["host"], given["port"]) == (password, "redis", 6379)


def test_without_a_redis_password_the_environments_url_stays() -> None:
    environment = {"PATH": os.defpath, "NEXUS_REDIS_URL": "redis://elsewhere/0"}
    command = ["sh", str(ROOT / "docker-entrypoint.sh"), "sh", "-c", 'printf %s "$NEXUS_REDIS_URL"']
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "redis://elsewhere/0"


def test_redis_has_a_password_and_no_url_holds_one() -> None:
    assert "--requirepass" in COMPOSE
    assert not re.search(r"://[^\s/]*\$\{[^\s/]*@", COMPOSE), "Compose cannot percent-encode a password"
    assert not re.search(r'ports: \["(?!127\.0\.0\.1:)', COMPOSE)


def test_postgres_has_a_connection_for_each_that_the_suggested_workers_open() -> None:
    """The file's comment suggests four workers. Under load a worker opens twice as many connections as its pool keeps.

    Four further pools of one thread stand for beat, Flower and two commands.
    """
    services = yaml.safe_load(COMPOSE)["services"]
    [suggested] = re.findall(r"--scale worker=(\d+)", COMPOSE)
    command = services["worker"]["command"]
    threads = int(command[command.index("--concurrency") + 1])
    settings = Settings(database_url=SecretStr("postgresql://x/x"), redis_url=SecretStr("redis://x"))
    [has] = [int(one.partition("=")[2]) for one in services["postgres"]["command"] if "max_connections" in one]
    assert 2 * int(suggested) * pool_size(settings, threads) + 4 * pool_size(settings, 1) <= has


# --- hashes -----------------------------------------------------------------------------------------------------------
def hashed(name: str) -> dict[str, str]:
    """The version of each package in a file with hashes."""
    lines = (ROOT / name).read_text().splitlines()
    versions = dict(line.removesuffix(" \\").split("==") for line in lines if "==" in line)
    hashes = [line for line in lines if re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)]
    assert len(lines) == 1 + len(versions) + len(hashes), "names, versions and hashes, and nothing else"
    return {name.replace("_", "-"): version for name, version in versions.items()}


def test_the_image_installs_what_was_tested_and_has_a_hash() -> None:
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    tested = {name.lower().replace("_", "-"): version for name, version in tested.items()}
    installed = hashed("requirements-image.txt")
    assert {name: version for name, version in installed.items() if tested[name] != version} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["flower"]
    assert {re.split(r"[\[>=<; ]", one)[0].lower() for one in wanted} <= set(installed)
    assert "hatchling" in hashed("requirements-build.txt")


def test_the_image_installs_nothing_without_a_hash() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    installs = [part for line in lines if line.startswith("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)


def test_pin_writes_the_digest_that_docker_names(tmp_path: Path) -> None:
    for name in ("Makefile", "Dockerfile", "docker-compose.yml"):
        shutil.copy(ROOT / name, tmp_path)
    digest = f"sha256:{'0' * 64}"
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "{digest}"\n')
    (tmp_path / "docker").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    for _ in range(2):  # the second time nothing is left to pin
        subprocess.run(["make", "--silent", "pin"], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
        froms = [line for line in (tmp_path / "Dockerfile").read_text().splitlines() if line.startswith("FROM")]
        assert froms == [f"FROM python:3.12-slim@{digest} AS build", f"FROM python:3.12-slim@{digest}"]
        images = re.findall(r"^ +image: (.+)$", (tmp_path / "docker-compose.yml").read_text(), re.MULTILINE)
        assert images == ["nexus-tasks", f"pgvector/pgvector:pg18@{digest}", f"redis:7-alpine@{digest}"]


@pytest.mark.long
def test_pip_installs_the_image_with_its_hashes(tmp_path: Path) -> None:
    python = shutil.which("python3.12")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("the image's Python, 3.12, is not on PATH")
    for name in ("build", "image"):
        subprocess.run([python, "-m", "venv", tmp_path / name], check=True)
        command = [tmp_path / name / "bin" / "pip", "install", "--quiet", "--require-hashes", "-r"]
        subprocess.run([*command, ROOT / f"requirements-{name}.txt"], check=True, timeout=280)
    wheel = [tmp_path / "build" / "bin" / "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "--wheel-dir", tmp_path, ROOT], check=True, timeout=60)
    [made] = tmp_path.glob("*.whl")
    subprocess.run([tmp_path / "image" / "bin" / "pip", "install", "--no-deps", "--no-index", made], check=True)
    subprocess.run([tmp_path / "image" / "bin" / "nexus", "--version"], cwd=tmp_path, check=True, timeout=60)
