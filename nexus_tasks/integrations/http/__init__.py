"""The HTTP API that ``nexus serve`` serves: everything that the client does, under ``/v1``."""
