"""What ``nexus init`` writes for coding agents (hook, MCP entry, skill, environment file), and how to take it back."""
