"""What MCP over HTTP and the HTTP API share: tokens, limits of requests, and listening on an address."""
