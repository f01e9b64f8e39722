"""The topic extractor: build the question to the model, and check the topic files in the model's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.extraction.batch import ExtractionBatch
from nexus_tasks.cognition.extraction.filenames import checked
from nexus_tasks.llm.answers import KnownTopic, PromptLine, TopicFiles, TopicsMaterial
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.storage import topics
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Topic
from nexus_tasks.storage.topics import TopicDraft
from nexus_tasks.text import content_words, estimate_tokens, shorten
from nexus_tasks.types import TopicType, clean_text

# These bounds are chosen by hand, not measured.
MOST_KNOWN = 200  # the most topics in the manifest (the prompt's list of topics), the last changed topic first
SHOWN_LINES = 3  # the model sees this many lines of a topic that is not shown whole; blank lines do not count
SHOWN_CHARACTERS = 300  # the most characters of such a line
LONGEST_NAME, LONGEST_DESCRIPTION = 80, 200  # characters
LONGEST_ANSWER = 20_000  # the most characters of a topic in an answer; the rest of a longer one is left out
_TYPES = frozenset(get_args(TopicType))


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The topics that the model was shown.

    Attributes:
        ids: the file name of each shown topic, by the topic's id.
        contents: by file name, the content of each topic as the model was shown it: whole, or only its beginning.
        revisions: by file name, the revision of each topic that was shown whole.
    """

    ids: dict[int, str]
    contents: dict[str, str]
    revisions: dict[str, int]


def build_request(
    tx: Transaction, namespace_id: int, session_key: str, batch: ExtractionBatch, shown_tokens: int
) -> tuple[ModelRequest[TopicFiles], Shown]:
    """Build the model request for a batch, with a manifest of the existing topics.

    Args:
        shown_tokens: the most tokens that the long topics shown whole may have together.

    Returns:
        The request, and the topics that it shows.
    """
    topics.split_oversized(tx, namespace_id)
    there = topics.every(tx, namespace_id, MOST_KNOWN)
    whole = _whole(there, batch.lines, shown_tokens)
    material = TopicsMaterial(
        lines=batch.lines,
        known=tuple(_known(topic, whole=topic.id in whole) for topic in there),
        known_from=frozenset(topics.source_ids(tx, [topic.id for topic in there])),
    )
    shown = Shown(
        ids={topic.id: topic.filename for topic in there},
        contents={topic.filename: topic.content for topic in material.known},
        revisions={topic.filename: topic.revision for topic in there if topic.id in whole},
    )
    return request_about(session_key, material), shown


def request_about(session_key: str, material: TopicsMaterial) -> ModelRequest[TopicFiles]:
    """The model request for new messages, with a manifest of the existing topics."""
    return ModelRequest(
        purpose="topics",
        instructions=prompts.instructions("topics"),
        transcript=f"{_manifest(material.known)}\n{prompts.transcript(material.lines)}",
        question=f"{prompts.names(session=session_key)}\nWrite the topics that these messages add or change.",
        answer=TopicFiles,
        material=material,
        shared=False,
    )


def drafts(answer: TopicFiles, batch: ExtractionBatch, shown: Shown, made_by: str) -> tuple[list[TopicDraft], int]:
    """The valid topic files, and the number of rejected files.

    A file with an unsafe name, an unknown type or no content is rejected.
    """
    kept = list[TopicDraft]()
    for file in answer.topics:
        filename = checked(file.filename.strip())
        content = clean_text(file.content).strip()
        kind = file.type.strip().casefold()
        if filename is None or kind not in _TYPES or not content:
            continue
        kept.append(
            TopicDraft(
                filename=filename,
                name=one_line(file.name, LONGEST_NAME) or filename.removesuffix(".md"),
                description=one_line(file.description, LONGEST_DESCRIPTION),
                type=kind,
                content=content if len(content) <= LONGEST_ANSWER else content[: LONGEST_ANSWER - 1] + "…",
                made_by=made_by,
                seen=shown.revisions.get(filename, 0),
                shown=shown.contents.get(filename, ""),
                sources=tuple(line.id for line in batch.lines),
            )
        )
    return kept, len(answer.topics) - len(kept)


def one_line(text: str, most: int) -> str:
    """``text`` without line breaks and control characters, cut to ``most`` characters."""
    return shorten(" ".join(clean_text(text).split()), most)


def _whole(there: Sequence[Topic], lines: Sequence[PromptLine], budget: int) -> set[int]:
    """Ids of the topics to show whole.

    A topic is short when its preview is all of it. All short topics are shown whole. Of the long topics, those with
    the most words in common with the messages come first. Each is shown whole if it fits in what ``budget`` (tokens)
    has left. A topic that does not fit leaves its place to smaller ones.
    """
    said = {word for line in lines for word in content_words(line.content)}
    found = {topic.id for topic in there if _is_short(topic.content)}
    long = [topic for topic in there if topic.id not in found]
    for topic in sorted(long, key=lambda topic: -len(said & set(content_words(f"{topic.name} {topic.content}")))):
        tokens = estimate_tokens(topic.content)
        if tokens <= budget:
            budget -= tokens
            found.add(topic.id)
    return found


def _is_short(content: str) -> bool:
    lines = _filled_lines(content)
    return len(lines) <= SHOWN_LINES and all(len(line) <= SHOWN_CHARACTERS for line in lines)


def _filled_lines(content: str) -> list[str]:
    return [line for line in content.splitlines() if line.strip()]


def _preview(content: str) -> str:
    return "\n".join(shorten(line, SHOWN_CHARACTERS) for line in _filled_lines(content)[:SHOWN_LINES])


def _known(topic: Topic, *, whole: bool) -> KnownTopic:
    content = topic.content if whole else _preview(topic.content)
    return KnownTopic(
        filename=topic.filename,
        name=topic.name,
        description=topic.description,
        type=topic.type,
        content=content,
        whole=whole,
    )


def _manifest(known: Sequence[KnownTopic]) -> str:
    shown = [
        f'<topic filename="{one.filename}" type="{one.type}" shown="{"whole" if one.whole else "beginning"}">\n'
        f"{prompts.inert(f'{one.name}: {one.description}')}\n{prompts.inert(one.content)}\n</topic>"
        for one in known
    ]
    return "\n".join(("<topics>", *(shown or ["none"]), "</topics>"))
