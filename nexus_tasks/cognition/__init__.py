"""The work of each job, as functions of a transaction, a model and an embedder. This package needs no Celery or Redis.

- ``derive``: facts from messages. ``digest``: the rolling summary of a session. ``reflect``: how facts relate.
- ``extraction``: topic files and facts after an agent's turn. ``observing``: dated notes in place of old messages.
- ``retrieval``: search. ``context``: a block of memories under a token bound. ``erasure``: deleting memories.
- ``embed``: missing vectors. ``echo``: memories that an agent repeats. ``prompts``: the model's instructions.

All of them build on ``resources`` (database, model, embedder, settings), ``job_context`` (one run of a job, and its
commit) and ``model_call`` (which asks the model). ``model_call`` uses ``budget`` and ``message_batches``.
"""
