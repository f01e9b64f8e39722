"""The MCP server ``nexus mcp``: an agent's memory over the Model Context Protocol, through stdio or HTTP."""
