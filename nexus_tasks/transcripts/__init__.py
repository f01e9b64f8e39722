"""Transcripts of coding agents: reading them, and scrubbing secrets before anything is kept. Standard library only."""
