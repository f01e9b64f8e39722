"""The limits of input: what a call, an import or a client over HTTP may send at most.

Beyond a limit, a call raises :class:`~nexus_tasks.errors.InvalidInput` before it stores anything, and a server over
HTTP answers with a status of its own. A test compares this module with the table in ``docs/limits.md``.
"""

from __future__ import annotations

# --- messages ---------------------------------------------------------------------------------------------------------
MESSAGE_CHARACTERS = 1_000_000  # of a message: its content, and its tool calls and data as JSON, together
TOOL_CALL_VALUES = 10_000  # of the tool calls and of the data of a message: objects, lists, and the values in them
MESSAGES_PER_CALL = 100_000  # of one call of `ingest`, and of one session in a file
OBSERVERS_PER_CALL = 100
DERIVATIONS_PER_CALL = 100_000  # messages of a call times their observers; each is a job, and all take about 20 s
NAMESPACE_JOBS = 100_000  # of a namespace in Redis, about 94 MB; beyond, derivations wait in Postgres

# --- names and other arguments ----------------------------------------------------------------------------------------
NAME_CHARACTERS = 256  # of a session key, observer, subject, author or id that is stored
WORD_CHARACTERS = 1_000  # of a name, an id or a word that is only looked up
JOB_ID_CHARACTERS = 10_000  # of a job's id, which a caller may have from elsewhere
INSTRUCTIONS_CHARACTERS = 2_000  # of a namespace's instructions, about 500 tokens of each model call
QUERY_CHARACTERS = 100_000  # of a question; a search uses its first 32 words
PATH_BYTES = 4_096  # the limit of Linux
LIST_ENTRIES = 10_000  # of a list in an argument, such as `levels` or `ids`

# --- answers ----------------------------------------------------------------------------------------------------------
PAGE_ROWS = 1_000  # the largest `limit` of a list, and of the messages of a session
PAGE_OFFSET = 1_000_000  # the largest `offset` of a list
SEARCH_RESULTS = 1_000
ANSWER_BYTES = (
    16_000_000  # of the texts of one page or search. A page of messages ends earlier, another list is refused
)
HIT_EVIDENCE = 100  # citations of one search hit, and messages of a fact in a list; `more_evidence` counts the others
# Citations of a memory that is shown alone, entries of its `supports` and `superseded`, and sources of a topic.
MEMORY_EVIDENCE = 1_000
CONTEXT_TOKENS = 1_000_000

# --- imports ----------------------------------------------------------------------------------------------------------
IMPORT_LINE_CHARACTERS = 50_000_000  # of one line of an export
TOPIC_FILES = 10_000  # of a folder of topics
TOPIC_BYTES = 1_000_000  # of a topic's file
FILE_BYTES = 268_435_456  # of a file or stream of messages, of `facts.md`, and of a folder of topics
FILE_LINES = 500_000
FILE_LINE_BYTES = 33_554_432

# --- MCP and the API over HTTP ----------------------------------------------------------------------------------------
HTTP_HEADER_BYTES = 32_768  # of the request line and all headers; beyond: status 431
HTTP_BODY_BYTES = 8_000_000  # beyond: status 413. JSON may write a character of a message as 6 bytes
HTTP_BODY_VALUES = 250_000  # of a JSON body: objects, lists, and the values in them; beyond: status 413
HTTP_SMALL_CHUNKS = 1_000  # chunks below 64 bytes of a body that is sent in chunks; beyond: status 400
HTTP_OPEN_BODY_BYTES = 10_000  # of a request to a path that needs no token; beyond: status 413
HTTP_DRAINED_BYTES = 64_000_000  # of a longer body, which are read so that the client sees the answer 413
HTTP_CONNECTIONS = 512  # open at a time; beyond, the one that waits longest for its request gets status 429
HTTP_NAMESPACE_REQUESTS = 32  # of a namespace, open at a time; beyond: status 429. 8 of them run, the others wait
HTTP_REQUEST_SECONDS = 20  # for sending one whole request; beyond: status 408

# --- the API over HTTP ------------------------------------------------------------------------------------------------
HTTP_IMPORT_BYTES = 268_435_456  # of the body of an import; beyond: status 413
HTTP_ANSWER_SECONDS = 60  # for the answer of a call; beyond: status 504
HTTP_LONG_SECONDS = 600  # of a long call: a question, an import, the plan of a dream, a body beyond 65,536 bytes
HTTP_LONG_CALLS = 8  # long calls and exports, or questions over MCP, at a time in a process; beyond: status 503
HTTP_NAMESPACE_LONG_CALLS = 4  # of these with the tokens of a namespace; beyond: status 503
HTTP_STREAMS = 100  # streams of jobs' events at a time in a process; beyond: status 503
HTTP_NAMESPACE_STREAMS = 32  # of these with the tokens of a namespace; beyond: status 503
HTTP_EVENTS_SECONDS = 600  # of one stream of a job's events
HTTP_STALL_SECONDS = 60  # in which a client must take a part of an answer; beyond, the connection is closed
HTTP_LEAST_BYTES = 16_384  # of an answer that a client must take per second, beside 60 s; else it is closed too
HTTP_ANSWER_KEPT_SECONDS = 86_400  # in which a repeat with the same idempotency key gets the same answer
HTTP_ANSWER_KEPT_BYTES = 65_536  # of an answer that is kept for repeats
HTTP_ANSWERS_KEPT_BYTES = 64_000_000  # of the answers that are kept for one token within 24 hours
HTTP_ANSWER_KEPT_SECONDS_BEYOND = 600  # for which a further answer is kept
