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
- ``prompts`` holds the model's instructions.

Each job gets its database, model, embedder and settings from ``resources``. Each job commits through ``job_context``,
which stands for one run of a job. A job that asks the model does so through ``model_call``. The module ``model_call``
uses ``budget`` and ``message_batches``.
"""
