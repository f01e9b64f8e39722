"""The image and the services of docker-compose.yml: which files reach a layer, and passwords with any characters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

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
