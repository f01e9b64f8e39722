"""Ask the model for an answer. The model may look again, at most four times. Each reply is paid from the budget."""

from __future__ import annotations

from collections.abc import Callable

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.answering import looking
from nexus_tasks.cognition.answering.checking import Checked, SentenceStream
from nexus_tasks.cognition.answering.looking import AnswerRequest
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.llm.answers import Answered, AnswerLine, AnswerMaterial
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.types import Answer, AnswerSentence, CitedMemory

MOST_LOOKUPS = 4
NOT_REMEMBERED = "Not remembered."
_EXTRACTIVE = "The offline model answers with remembered lines, word for word."


def answer(
    resources: Resources,
    job: JobContext,
    asked: AnswerRequest,
    on_sentence: Callable[[AnswerSentence], None] | None = None,
) -> Answer:
    """Answer a question.

    Args:
        on_sentence: called with each sentence as soon as its citations are checked.

    Raises:
        OverBudget: the namespace's budget for the day does not allow the next call.
        JobError: the model gave no usable answer.
    """
    shown = looking.first(resources, asked)
    looked: list[str] = []
    checked = Checked()
    while shown:
        stream = SentenceStream(shown, on_sentence or (lambda _sentence: None))
        last = len(looked) == MOST_LOOKUPS
        reply = ask(
            resources, job, build_request(asked, shown, looked, last=last), on_text=stream.feed if on_sentence else None
        )
        if reply.lookup is None or last:
            checked = stream.finish(reply.sentences)
            break
        found = looking.again(resources, asked, reply.lookup, shown)
        looked.append(f"{looking.described(reply.lookup)}: {len(found)} more lines")
        shown |= found
    sentences = tuple(checked.sentences)
    offline = resources.model.provider_for("answer") == "offline"
    return Answer(
        namespace=asked.namespace,
        question=asked.question,
        remembered=bool(sentences),
        text=" ".join(map(str, sentences)) or NOT_REMEMBERED,
        sentences=sentences,
        citations={
            f"m{i}": CitedMemory(id=i, external_id=shown[i].external_id) for one in sentences for i in one.citations
        },
        lookups=len(looked),
        dropped=checked.dropped,
        made_by=resources.model.model_for("answer"),
        notes=(_EXTRACTIVE,) if offline else (),
    )


def build_request(
    asked: AnswerRequest, shown: dict[int, AnswerLine], looked: list[str], *, last: bool
) -> ModelRequest[Answered]:
    """The model request for an answer from ``shown``.

    Args:
        looked: what the model has looked at so far.
        last: whether the model must answer now.
    """
    left = MOST_LOOKUPS - len(looked)
    so_far = "".join(f"You looked: {one}.\n" for one in looked)
    may = "You may not look again: answer now." if last else f"You may look {left} more time{'s' * (left > 1)}."
    return ModelRequest(
        purpose="answer",
        instructions=prompts.instructions("answer"),
        transcript=prompts.memories(shown.values()),
        question=f"{so_far}{may}\nThe question, as JSON: {prompts.as_json(asked.question)}",
        answer=Answered,
        material=AnswerMaterial(question=asked.question, lines=tuple(shown.values())),
        shared=False,
    )
