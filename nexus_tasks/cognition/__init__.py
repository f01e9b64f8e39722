"""What each job does, as functions over a storage transaction, a model and an embedder. Knows neither Celery nor Redis.

- ``derive``: facts from messages. ``digest``: the rolling summary of a session. ``reflect``: how facts relate.
- ``extraction``: topic files and facts after an agent's turn. ``observing``: dated notes in place of old messages.
- ``retrieval``: search. ``context``: a block of memories under a token bound. ``erasure``: what goes with a memory.
- ``embed``: missing vectors. ``echo``: text that search or context gave out before. ``prompts``: the instructions.

Below them lie ``resources`` (database, model, embedder, settings) and ``job_context`` (one run of a job, and its
commit); then ``budget``; then ``message_batches``; then ``model_call``, which asks the model.
"""
