"""Exporting the memory of a namespace as lines of JSON, and importing such an export."""
