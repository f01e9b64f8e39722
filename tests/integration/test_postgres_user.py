"""Starters that run as root at the same time, on a machine without the user that Postgres runs as."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STARTERS = 4

# Runs in a mount namespace of its own, whose /etc is a copy: users that it makes are not seen outside.
STAGE = """
set -e
cp -a /etc "$1/etc"
mount --bind "$1/etc" /etc
sed -i /^pgserver:/d /etc/passwd /etc/shadow /etc/group /etc/gshadow
for _ in $(seq "$2"); do
    "$3" -c 'from nexus_tasks.embedded.account import postgres_account; print(postgres_account())' >>"$1/accounts" &
done
wait
getent passwd pgserver | cut -d: -f3 >"$1/user"
"""

# Takes useradd's place on PATH: it notes when another useradd runs, and gives the other one time to begin.
USERADD = """#!/bin/sh
mkdir "{folder}/busy" 2>/dev/null || echo overlap >>"{folder}/overlaps"
sleep 2  # so that a second useradd, if there is one, begins meanwhile
"{useradd}" "$@"
code=$?
rmdir "{folder}/busy" 2>/dev/null
exit $code
"""


def can_mount() -> bool:
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="only root may make mount namespaces")
def test_starters_at_the_same_time_make_one_user(tmp_path: Path) -> None:
    useradd = tmp_path / "bin" / "useradd"
    useradd.parent.mkdir()
    useradd.write_text(USERADD.format(folder=tmp_path, useradd=shutil.which("useradd")))
    useradd.chmod(0o755)
    subprocess.run(
        ["unshare", "--mount", "sh", "-c", STAGE, "sh", str(tmp_path), str(STARTERS), sys.executable],
        check=True,
        env={**os.environ, "PATH": f"{useradd.parent}:{os.environ['PATH']}"},
        timeout=60,
    )
    user = (tmp_path / "user").read_text().strip()
    accounts = (tmp_path / "accounts").read_text().splitlines()
    assert len(accounts) == STARTERS
    assert {line.split("uid=")[1].split(",")[0] for line in accounts} == {user}
    assert not (tmp_path / "overlaps").exists()
