"""Transcripts of coding agents: read them, and scrub their secrets before the first write. Standard library only."""
