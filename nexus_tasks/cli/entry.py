"""The command ``nexus``. The hook runs without Typer, because importing Typer would take too long for a hook."""

from __future__ import annotations

import gc
import sys

_INTERRUPTED = 130
_AGENTS = ("claude-code", "codex", "cursor")


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    try:
        _run()
    except KeyboardInterrupt:  # Ctrl-C while the modules are imported, or at the end
        sys.exit(_INTERRUPTED)


def _run() -> None:
    if sys.argv[1:2] == ["hook"] and len(sys.argv) > 2 and sys.argv[2] in _AGENTS and "--help" not in sys.argv:
        from nexus_tasks.integrations.coding_agents.hook import main as hook

        sys.exit(hook(sys.argv[3:], agent=sys.argv[2]))
    # Importing makes many objects and little garbage. The collector would walk the same objects again and again, and
    # take 0.3 s of a command's start. What is imported before `freeze` is never walked.
    gc.disable()
    try:
        from nexus_tasks.cli.main import main as command
    except (MemoryError, SystemError):  # where memory is short, the interpreter raises either while it imports
        sys.exit("error: The process has too little memory to start. Raise its limit (`ulimit -v`).")

    gc.freeze()
    gc.enable()
    try:
        command()
    finally:
        gc.freeze()  # else Python walks every object once more at its exit, which takes 0.2 s


if __name__ == "__main__":
    main()
