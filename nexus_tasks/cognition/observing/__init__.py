"""Observation of a long conversation: a running, dated log in place of its old messages.

``observe`` makes chunks of observations ahead of time, ``condense`` makes a shorter log ahead of time; ``reading`` puts
them into the log when the conversation has grown enough, without asking a model; ``block`` lays out what is read.
"""
