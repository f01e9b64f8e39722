"""The checks of ``nexus doctor``."""
