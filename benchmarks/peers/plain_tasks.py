"""The same work as a task of stock Celery: read a session, ask the model for facts, store them in one transaction.

Workers run it in a virtual environment of their own, which has Celery and psycopg and no nexus-tasks.
"""

import json
import os
import urllib.request

import psycopg
from celery import Celery

TABLES = """
CREATE TABLE plain_messages (session text, author text, content text, n int);
CREATE TABLE plain_facts (session text, n int, content text);
"""
PROMPT = "State the facts that the messages tell, one observation per message."
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["observations"],
    "properties": {"observations": {"type": "array", "items": {"type": "string"}}},
}

app = Celery("plain", broker=os.environ.get("PEERS_BROKER", "memory://"), set_as_current=False)
app.conf.update(
    # What Celery's documentation advises for tasks that must not be lost.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    # Its best case: unacknowledged messages come back after about 5 s, and every task is shorter.
    broker_transport_options={"visibility_timeout": 5, "unacked_restore_throttle": 1, "global_keyprefix": "plain:"},
)


@app.task(name="plain.derive", autoretry_for=(Exception,), retry_backoff=True, max_retries=5)
def derive(session: str) -> None:
    """Derive the facts of a session."""
    with psycopg.connect(os.environ["PEERS_DATABASE"]) as connection:
        said = connection.execute(
            "SELECT n, author, content FROM plain_messages WHERE session = %s ORDER BY n", [session]
        ).fetchall()
    facts = ask("\n".join(f"[{n}] 10:00 {author}: {content}" for n, author, content in said))
    with psycopg.connect(os.environ["PEERS_DATABASE"]) as connection:
        for fact in facts:
            connection.execute(
                "INSERT INTO plain_facts VALUES (%s, %s, %s)", [session, fact["sources"][0], fact["content"]]
            )


def ask(transcript: str) -> list[dict]:
    """Ask the model for facts."""
    body = {
        "model": "claude-haiku-4-5",
        "max_tokens": 4096,
        "system": PROMPT,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": transcript},
                    {"type": "text", "text": "Facts about these subjects: ann"},
                ],
            }
        ],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }
    request = urllib.request.Request(
        os.environ["PEERS_MODEL"] + "/v1/messages",
        json.dumps(body).encode(),
        {"x-api-key": "stand-in", "anthropic-version": "2023-06-01", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    return json.loads(answer["content"][0]["text"])["observations"]
