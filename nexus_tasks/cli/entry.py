"""The command ``nexus``. The hook runs without Typer, because importing Typer would take too long for a hook."""

from __future__ import annotations

import sys

_HOOK = ["hook", "claude-code"]


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    if sys.argv[1:3] == _HOOK and "--help" not in sys.argv:
        from nexus_tasks.integrations.claude_code.hook import main as hook

        sys.exit(hook(sys.argv[3:]))
    from nexus_tasks.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
