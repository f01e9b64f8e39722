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
    heard = _Heard(on_sentence)
    looked: list[str] = []
    checked = Checked()
    while shown:
        stream = SentenceStream(shown, heard.tell)
        last = len(looked) == MOST_LOOKUPS
        reply = ask(
            resources, job, build_request(asked, shown, looked, last=last), on_text=stream.feed if on_sentence else None
        )
        heard.raise_error()
        if reply.lookup is None or last:
            checked = stream.finish(reply.sentences)
            heard.raise_error()
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


class _Heard:
    """Tells the caller the sentences. An error of the caller is raised when the reply has ended and is in the ledger.

    Raised at once, it would end the reply in the middle, which is paid all the same and would be in no budget.
    """

    def __init__(self, on_sentence: Callable[[AnswerSentence], None] | None) -> None:
        self._on_sentence = on_sentence
        self._error: Exception | None = None

    def tell(self, sentence: AnswerSentence) -> None:
        """Call the caller's function, unless it has failed before."""
        if self._on_sentence is None or self._error is not None:
            return
        try:
            self._on_sentence(sentence)
        except Exception as error:  # the caller's function may raise anything; it is raised after the reply
            self._error = error

    def raise_error(self) -> None:
        """Raise what the caller's function has raised."""
        if self._error is not None:
            raise self._error


def build_request(
    asked: AnswerRequest, shown: dict[int, AnswerLine], looked: list[str], *, last: bool
) -> ModelRequest[Answered]:
    """The model request for an answer from ``shown``.

    Args:
        looked: what the model has looked at so far.
        last: whether the model must answer now.
    """
    left = MOST_LOOKUPS - len(looked)
    so_far = f"You looked, as JSON: {prompts.as_json(looked)}\n" if looked else ""
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
