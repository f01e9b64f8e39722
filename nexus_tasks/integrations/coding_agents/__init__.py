"""The hook (the command that a coding agent runs at its events), and the installation of the hook."""
