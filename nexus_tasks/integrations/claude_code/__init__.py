"""The hook (the command that Claude Code runs at its events), and the installation of the hook."""
