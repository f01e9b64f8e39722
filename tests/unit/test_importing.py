"""A fork waits for the imports of other threads (``importing.py``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORK = """
import importlib, os, sys, threading, time
import nexus_tasks.deployment
from nexus_tasks import importing

def forked_import(name):
    began, child = time.monotonic(), os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    took = time.monotonic() - began
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() - began > 8:
            os.kill(child, 9)
        time.sleep(0.01)
    return ended[1], took

def begin(name):
    importing_it = threading.Thread(target=importlib.import_module, args=(name,), daemon=True)
    importing_it.start()
    while name not in sys.modules:
        time.sleep(0.001)
"""


def test_a_child_that_was_forked_while_a_thread_imported_a_module_imports_it_too(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.5)\n")
    run(tmp_path, FORK + "begin('slow')\nstatus, took = forked_import('slow')\nassert status == 0, status\n")


def test_an_importing_thread_that_needs_the_default_deployment_holds_no_fork_up(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\ntime.sleep(0.3)\nfrom nexus_tasks.deployment import default_deployment\ndefault_deployment()\n"
    )
    run(tmp_path, FORK + "begin('slow')\nstatus, took = forked_import('slow')\nassert status == 0 and took < 5, took\n")


def test_an_import_without_an_end_holds_only_one_fork_up(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    script = """
importing.LONGEST = 2.0
begin('endless')
status, took = forked_import('json')
assert status == 0 and took >= 2, (status, took)
status, took = forked_import('json')
assert status == 0 and took < 1.5, (status, took)
"""
    run(tmp_path, FORK + script)


def test_a_fork_during_an_own_import_begins_at_once(tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(
        "import os, time\nbegan = time.monotonic()\nif not os.fork(): os._exit(0)\ntook = time.monotonic() - began\n"
    )
    run(tmp_path, FORK + "import forking\nassert forking.took < 5, forking.took\n")


def run(folder: Path, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.returncode, done.stderr
