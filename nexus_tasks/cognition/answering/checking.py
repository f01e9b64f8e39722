"""Check the sentences of an answer: a sentence stays when it cites a memory that the model was shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from nexus_tasks.llm.answers import Sentence
from nexus_tasks.text import shorten
from nexus_tasks.types import AnswerSentence, clean_text

# A model's answer is untrusted, so these bounds limit its length. They are chosen by hand, not measured.
LONGEST_SENTENCE, MOST_SENTENCES, MOST_CITATIONS = 1_000, 20, 10
# A caller hears the sentences in an answer's first 50,000 characters one by one, and all others at the answer's end.
LONGEST_STREAMED = 50_000


@dataclass(kw_only=True)
class Checked:
    """The sentences that stay, and the number of the others."""

    sentences: list[AnswerSentence] = field(default_factory=list)
    dropped: int = 0


class SentenceStream:
    """Checks the sentences of an answer while its JSON arrives.

    Args:
        shown: ids of the memories that the model was shown.
        on_sentence: called with each sentence that stays.
    """

    def __init__(self, shown: Collection[int], on_sentence: Callable[[AnswerSentence], None]) -> None:
        self._shown, self._on_sentence = frozenset(shown), on_sentence
        self._text, self._seen = "", 0
        self._checked = Checked()

    def feed(self, text: str) -> None:
        """Take the next piece of the answer's JSON."""
        # Each piece with a brace reads the whole text again, so a longer text waits for its end.
        if len(self._text) > LONGEST_STREAMED:
            return
        self._text += text
        if "}" not in text:
            return
        try:
            partial: Any = from_json(self._text, allow_partial=True)
        except ValueError:
            return  # the reply is checked as a whole at its end
        # Without the field, the reply may still ask for another look, and then its sentences do not count.
        if not isinstance(partial, Mapping) or partial.get("lookup", True) is not None:
            return
        sentences = partial.get("sentences")
        # More may follow in the last one: [1, 2 may become [1, 23].
        for given in sentences[self._seen : -1] if isinstance(sentences, list) else ():
            try:
                self._check(Sentence.model_validate(given))
            except ValidationError:
                return

    def finish(self, sentences: Sequence[Sentence]) -> Checked:
        """Check the sentences that :meth:`feed` has not checked. Returns the whole result."""
        for sentence in sentences[self._seen :]:
            self._check(sentence)
        return self._checked

    def _check(self, given: Sentence) -> None:
        self._seen += 1
        text = shorten(" ".join(clean_text(given.text).split()), LONGEST_SENTENCE)
        cited = tuple(dict.fromkeys(i for i in given.citations if i in self._shown))[:MOST_CITATIONS]
        if not text or not cited or len(self._checked.sentences) == MOST_SENTENCES:
            self._checked.dropped += 1
            return
        sentence = AnswerSentence(text=text, citations=cited)
        self._checked.sentences.append(sentence)
        self._on_sentence(sentence)
