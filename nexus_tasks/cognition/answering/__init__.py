"""Answer a question from memory: every sentence cites the memories that say it, or nothing is remembered.

``answer`` asks the model, which may look again. ``looking`` finds the lines that the model sees. ``checking`` drops
what has no valid citation, also while an answer arrives. The offline model's rules are in ``llm/offline/answer.py``.
"""

from nexus_tasks.cognition.answering.answer import answer
from nexus_tasks.cognition.answering.looking import AnswerRequest

__all__ = ["AnswerRequest", "answer"]
