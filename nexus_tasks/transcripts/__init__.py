"""Reading the transcripts of coding agents, and scrubbing secrets from the text before it is written to disk.

This package needs no third-party package, so that the hook starts quickly.
"""
