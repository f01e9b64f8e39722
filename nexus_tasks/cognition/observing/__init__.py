"""Observation of a long conversation: a dated log of notes takes the place of the old messages in a prompt.

Two jobs work ahead of time and do not change the log. ``observe`` writes notes on the newest messages. ``condense``
writes a shorter version of the log. ``session_view`` reads a session. When the conversation has grown enough,
``session_view`` moves the prepared notes into the log, without asking a model. ``view_block`` renders the view for a
prompt. ``message_text`` renders one message and estimates its tokens. ``erasures`` discards the work of a run when a
message was erased meanwhile.
"""
