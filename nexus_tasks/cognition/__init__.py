"""The work of each job, as functions that need a database, a model and an embedder, but no Celery and no Redis.

- ``derive``: facts from messages. ``digest``: the rolling summary of a session. ``reflect``: how facts relate.
- ``extraction``: topic files and facts after an agent's turn. ``observing``: dated notes in place of old messages.
- ``retrieval``: search. ``context``: a block of memories under a token bound. ``erasure``: deleting memories.
- ``embed``: storing missing vectors. ``echo``: finding text that an agent repeats from memory. ``prompts``: the model's
  instructions.

All of them build on ``resources`` (database, model, embedder, settings), ``job_context`` (one run of a job, and its
commit) and ``model_call`` (which asks the model). ``model_call`` uses ``budget`` and ``message_batches``.
"""
