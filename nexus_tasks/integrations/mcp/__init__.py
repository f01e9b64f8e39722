"""Memory over the Model Context Protocol: ``nexus mcp``, on standard input and output or over HTTP."""
