"""The work of each job, as functions. The functions need a database, a model and an embedder, but no Celery or Redis.

- ``derive`` finds facts in messages.
- ``digest`` writes the rolling summary of a session.
- ``reflect`` relates new facts to old facts.
- ``extraction`` writes topic files and facts after an agent's turn.
- ``observing`` writes dated notes that take the place of old messages in a prompt.
- ``retrieval`` searches memories.
- ``context`` puts memories into a block of text under a token bound.
- ``erasure`` deletes memories.
- ``embed`` stores missing vectors.
- ``echo`` finds text that an agent repeats from memory.
- ``prompts`` has the instructions for the model, one Markdown file per purpose.

Each job gets its database, model, embedder and settings from ``resources``. ``job_context`` describes the run of a job
and commits the run's effects. ``model_call`` asks the model. For this, ``model_call`` uses ``budget`` and
``message_batches``.
"""
