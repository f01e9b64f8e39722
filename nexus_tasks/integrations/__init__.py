"""The ways in which other programs use the memory: an agent's hook, MCP, and importers of conversations."""
