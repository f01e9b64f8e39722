"""Memory over the Model Context Protocol: ``nexus mcp``, over standard input and output or over HTTP."""
