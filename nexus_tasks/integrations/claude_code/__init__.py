"""The hook that Claude Code calls for its events, and the installation of the hook."""
