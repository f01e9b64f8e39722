"""The answers given when nothing was scripted: computed from the prompt, the same for the same prompt."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

from tests.standin.ledger import Call

# "[123] 03:04 ann: text", with the role behind the author when it is not "user"; context-only lines begin with
# "(context)" and do not match. A digest's lines have no ids, and its facts are items: "- text".
LINE = re.compile(r"^\[(?P<id>\d+)\] (?P<time>\S+) (?P<author>.+?)(?: \((?P<role>\w+)\))?: ?(?P<text>.*)$", re.M)
TOLD = re.compile(r"^(?:- |(?:\[\d+\] )?\d[\dT:Z-]+ [^:\n]+: )(?P<text>.*)$", re.M)
SUBJECTS = re.compile(r"subjects?\b[^:\n]*:(?P<names>.*)\Z", re.I | re.S)
LONGEST_CONTENT = 240


def default_answer(call: Call) -> Any:
    """What a sensible model would say, for any purpose. A model that is told no schema talks."""
    if not call.schema:
        return "What an interesting conversation! What would you like to know about it?"
    if call.purpose == "derive":
        return derive(call)
    if call.purpose == "digest":
        return digest(call)
    if call.purpose == "reflect":
        return {"relations": [], "insights": []}
    if call.purpose == "topics":
        return topics(call)
    if call.purpose == "facts":
        return facts(call)
    if call.purpose == "answer":
        return answer(call)
    return smallest(call.schema, call.schema.get("$defs", {}))


def together(calls: int) -> Callable[[Call], Any]:
    """The default answers, none of them before so many calls are there at once (within a minute)."""
    here = threading.Barrier(calls, timeout=60)

    def make(call: Call) -> Any:
        here.wait()
        return default_answer(call)

    return make


def derive(call: Call) -> Any:
    """One observation per batch line whose author is among the subjects that the question names."""
    question = call.parts[-1] if call.parts else ""
    found = SUBJECTS.search(question)
    wanted = found["names"] if found else question
    lines = [line for line in LINE.finditer("\n".join(call.parts)) if _named(line["author"], wanted)]
    return {"observations": [_observation(line) for line in lines]}


def _named(author: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(author)}(?!\w)", text) is not None


def _observation(line: re.Match[str]) -> dict[str, Any]:
    return {
        "subject": line["author"],
        "content": f"{line['author']} said: {line['text']}"[:LONGEST_CONTENT].rstrip(),
        "category": "other",
        "confidence": 0.9,
        "sources": [int(line["id"])],
        "occurred_at": None,
        "labels": [],
    }


def digest(call: Call) -> Any:
    """The beginning of what was said, at two lengths."""
    text = "\n".join(call.parts)
    said = " ".join(line["text"] for line in TOLD.finditer(text)) or " ".join(text.split())
    return {"short": said[:200].strip() or "Nothing was said.", "long": said[:800].strip() or "Nothing was said."}


def topics(call: Call) -> Any:
    """One topic with a line for everything that was said, behind what it says already."""
    known, _, told = "\n".join(call.parts).partition("</topics>")
    said = re.findall(r"^- .*$", known, re.M)
    said += [f"- {line['author']} said: {line['text']}" for line in LINE.finditer(told)]
    topic = {"filename": "conversation.md", "name": "Conversation", "description": "What was said.", "type": "project"}
    return {"topics": [{**topic, "content": "\n".join(said)}] if said else []}


def facts(call: Call) -> Any:
    """A fact per message of a user."""
    lines = [line for line in LINE.finditer("\n".join(call.parts)) if line["role"] is None]
    said = [(f"{line['author']} said: {line['text']}"[:LONGEST_CONTENT].rstrip(), int(line["id"])) for line in lines]
    fields = {"category": "project", "confidence": 8}
    return {"facts": [{**fields, "content": content, "sources": [source]} for content, source in said]}


MEMORY = re.compile(r"^\[(?P<id>\d+)\] \S+ (?P<who>.*?): (?P<text>.*)$", re.M)


def answer(call: Call) -> Any:
    """The memories that share a long word with the question, at most three."""
    question = call.parts[-1].rpartition("The question, as JSON:")[2]
    words = set(re.findall(r"\w{4,}", question.lower()))
    found = [
        one for one in MEMORY.finditer("\n".join(call.parts)) if words & set(re.findall(r"\w+", one["text"].lower()))
    ]
    sentences = [{"text": one["text"], "citations": [int(one["id"])]} for one in found[:3]]
    return {"lookup": None, "sentences": sentences}


def smallest(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """The smallest value that fits ``schema``: what a purpose unknown here gets."""
    if "$ref" in schema:
        return smallest(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return smallest(schema["anyOf"][-1], definitions)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: smallest(properties[name], definitions) for name in schema.get("required", [])}
    return {"array": [], "string": "", "integer": 0, "number": 0, "boolean": False}.get(schema.get("type", ""))
