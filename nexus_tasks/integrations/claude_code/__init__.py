"""Claude Code: its hook, and installing it."""
