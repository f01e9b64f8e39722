"""Transcripts of coding agents, made by a generator: what they look like, and secrets to plant in them."""
