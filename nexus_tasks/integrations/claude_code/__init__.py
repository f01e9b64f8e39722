"""The hook of Claude Code, and its installation."""
