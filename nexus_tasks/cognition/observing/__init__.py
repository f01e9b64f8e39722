"""Observation of a long conversation: a running, dated log in place of its old messages.

Two jobs work ahead of time: ``observe`` writes notes on messages that will soon be old, ``condense`` writes a shorter
log. Neither job changes the log. ``session_view`` reads a session. When the conversation has grown enough, the read
takes the prepared notes into the log, without asking a model. ``view_block`` renders the view for a prompt.
``message_text`` renders one message and estimates its tokens.
"""
