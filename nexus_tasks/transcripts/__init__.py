"""Read the transcripts of coding agents, and scrub secrets from the text before it is written to disk.

The hook (the command that the agent runs at its events) imports this package. So that the hook starts quickly, the
package imports no third-party library.
"""
