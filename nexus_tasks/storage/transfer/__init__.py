"""Exporting a namespace's memory as lines of JSON, and importing it."""
