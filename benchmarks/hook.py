"""How long ``nexus hook AGENT`` takes as a cold process, beside the start of the same interpreter alone.

The CPU time of a process, its children included, hardly depends on what else the machine does.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from benchmarks.machine import table
from nexus_tasks.transcripts import context_file
from nexus_tasks.transcripts.events import AGENTS

TIMES = 60
BASE = {"session_id": "0b9d3c5e", "transcript_path": "/nowhere/t.jsonl", "cwd": "/tmp", "permission_mode": "default"}
EVENTS = {
    "UserPromptSubmit": {"prompt": "Please fix the failing test in the cart. The password is hunter2-and-more. " * 20},
    "PostToolUse": {
        "tool_name": "Bash",
        "tool_input": {"command": "pytest -q", "env": {"API_TOKEN": "4f1c9a7e2b8d"}},
        "tool_response": {"stdout": "tests/test_cart.py ok\n" * 5_000, "stderr": ""},
        "tool_use_id": "toolu_1",
    },
    "SessionStart": {"source": "startup"},
}
OF_CURSOR = {"UserPromptSubmit": "beforeSubmitPrompt", "PostToolUse": "postToolUse", "SessionStart": "sessionStart"}


def milliseconds(command: list[str], stdin: str, environment: dict[str, str]) -> tuple[float, float, float]:
    """The median, the 95th percentile and the CPU time of so many starts."""
    took = []
    subprocess.run(command, input=stdin.encode(), env=environment, capture_output=True, check=False)  # it may compile
    cpu = cpu_of_children()
    for _ in range(TIMES):
        began = time.perf_counter()
        done = subprocess.run(command, input=stdin.encode(), env=environment, capture_output=True, check=False)
        took.append((time.perf_counter() - began) * 1_000)
        assert done.returncode == 0, done.stderr
    cpu = (cpu_of_children() - cpu) * 1_000 / TIMES
    return statistics.median(took), statistics.quantiles(took, n=20)[-1], cpu


def cpu_of_children() -> float:
    """The CPU time of all processes that were started and have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the table."""
    nexus = str(Path(sys.executable).with_name("nexus"))
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "NEXUS_HOME": home, "NEXUS_HOOK_NAMESPACE": "shop"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
        context_file.put(home, "shop", "- ann deploys on Tuesdays [m1]\n" * 190)
        bare, slow, cpu = milliseconds([sys.executable, "-I", "-c", "pass"], "", environment)
        rows: list[list[object]] = [
            ["calibration: the bare interpreter (-I -c pass)", f"{bare:.0f}", f"{slow:.0f}", f"{cpu:.0f}", ""]
        ]
        for agent, (name, fields) in product(AGENTS, EVENTS.items()):
            own = OF_CURSOR[name] if agent == "cursor" else name
            event = json.dumps(BASE | {"hook_event_name": own} | fields)
            took, slow, cpu = milliseconds([nexus, "hook", agent], event, environment)
            rows.append(
                [f"nexus hook {agent}, {own}", f"{took:.0f}", f"{slow:.0f}", f"{cpu:.0f}", f"{took - bare:+.0f}"]
            )
    columns = ["process", f"median of {TIMES}, ms", "95 %, ms", "CPU, ms", "beyond the bare start, ms"]
    print(table(columns, rows))
    print("\nBounds: 100 ms, and 60 ms for 95 % of UserPromptSubmit.")


if __name__ == "__main__":
    main()
