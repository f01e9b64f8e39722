"""Answering LoCoMo's questions from memory: ingest, ``ask``, judge. Shows scores by category, and costs.

    python -m benchmarks.answering --spend-usd 5 [--conversations N] [--questions N]     a real Claude
    python -m benchmarks.answering --stand-in [--questions N]                            free; its scores mean nothing
    python -m benchmarks.answering --offline [--conversations N] [--questions N]         free

With ``--offline`` nothing is judged: a question counts as right when a cited memory rests on a turn that answers it,
and an adversarial question when the answer is "not remembered".

Otherwise ``--spend-usd`` bounds the cost of all calls together. Four fifths of that sum are the budget of remembering
and asking. The rest is for judging, which stops before a call that could exceed the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic

from benchmarks.drain import LOCOMO, _claude, standin
from benchmarks.machine import table
from nexus_tasks import Nexus, embedded
from nexus_tasks.errors import OverBudget
from nexus_tasks.integrations.importers import read
from nexus_tasks.settings import Settings
from nexus_tasks.text import estimate_tokens
from tests.databases import make_template
from tests.sandbox import eventually, sandbox

ADVERSARIAL = 5
CATEGORIES = {1: "several hops", 2: "time", 3: "open domain", 4: "single hop", 5: "adversarial"}
LONGEST_ANSWER = 200  # tokens of a verdict
TO_JUDGE = 0.2  # the share of the money for judging
JUDGE = (
    "Does the given answer say the same as the right one? Reply with YES or NO only.\n\n"
    "Question: {}\nRight answer: {}\nGiven answer: {}"
)


class Purse:
    """Asks one model until the money is spent."""

    def __init__(self, client: anthropic.Anthropic, usd: float) -> None:
        self.client, self.left, self.spent = client, usd, 0.0
        settings = Settings()
        self.model = settings.model_reflect
        self.price = settings.price_of(self.model)

    def ask(self, text: str) -> str | None:
        """The model's reply, or ``None`` when the call might cost more than is left."""
        if self._cost(estimate_tokens(text) * 2, LONGEST_ANSWER) > self.left:
            return None
        said = self.client.messages.create(
            model=self.model, max_tokens=LONGEST_ANSWER, messages=[{"role": "user", "content": text}]
        )
        cost = self._cost(said.usage.input_tokens, said.usage.output_tokens)
        self.left, self.spent = self.left - cost, self.spent + cost
        return "".join(block.text for block in said.content if block.type == "text").strip()

    def _cost(self, read_tokens: int, written: int) -> float:
        return (read_tokens * self.price[0] + written * self.price[1]) / 1e6


def questions(conversations: int, most: int) -> list[tuple[str, dict[str, Any]]]:
    """At most ``most`` questions of each conversation, each with its namespace."""
    samples = json.loads(LOCOMO.read_text(encoding="utf-8"))[:conversations]
    return [(f"n.{sample['sample_id']}", asked) for sample in samples for asked in sample["qa"][:most]]


def judged(nexus: Nexus, purse: Purse, asked: list[tuple[str, dict[str, Any]]]) -> tuple[Counter[int], Counter[int]]:
    """How many questions of each category were asked, and how many were answered correctly."""
    tried, right = Counter[int](), Counter[int]()
    for namespace, one in asked:
        try:
            answer = nexus.ask(namespace, one["question"]).text
        except OverBudget:
            verdict = None
        else:
            expected = one.get("answer", "Not remembered.")  # adversarial questions have no answer in the conversation
            verdict = purse.ask(JUDGE.format(one["question"], expected, answer))
        if verdict is None:
            print("The money is used up: the other questions are not asked.", file=sys.stderr)
            break
        tried[one["category"]] += 1
        right[one["category"]] += verdict.upper().startswith("YES")
    return tried, right


def cited(nexus: Nexus, asked: list[tuple[str, dict[str, Any]]]) -> tuple[Counter[int], Counter[int]]:
    """How many questions of each category were asked, and how many got an answer that cites the evidence.

    An adversarial question is answered correctly when nothing is remembered.
    """
    tried, right = Counter[int](), Counter[int]()
    for namespace, one in asked:
        answer = nexus.ask(namespace, one["question"])
        told = {citation.external_id for citation in answer.citations.values()}
        for citation in answer.citations.values():
            told |= {edge.external_id for edge in nexus.memory(namespace, citation.id).evidence}
        evidence = {turn for entry in one["evidence"] for turn in re.findall(r"D\d+:\d+", entry)}
        tried[one["category"]] += 1
        right[one["category"]] += not answer.remembered if one["category"] == ADVERSARIAL else bool(told & evidence)
    return tried, right


def main() -> None:
    """Print correct answers by category, and the cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spend-usd", type=float, help="what all calls together may cost; needed for a real Claude")
    parser.add_argument("--stand-in", action="store_true", help="ask the tests' stand-in: shows that the loop works")
    parser.add_argument("--offline", action="store_true", help="ask the offline model, which quotes lines")
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument("--questions", type=int, default=1_000, help="of each conversation, at the most")
    options = parser.parse_args()
    if not (options.stand_in or options.offline or options.spend_usd):
        parser.error("this costs money: say how much it may be with --spend-usd N, or use --stand-in or --offline")
    usd = 1e9 if options.stand_in or options.offline else options.spend_usd
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder, ExitStack() as stack:
        settings = {"NEXUS_MODEL": "offline" if options.offline else "anthropic"}
        credentials = {name: value for name, value in os.environ.items() if name.startswith("ANTHROPIC_")}
        if options.stand_in:
            settings = credentials = _claude(stack.enter_context(standin(0.0)))
        servers = embedded.ensure(Path(folder))
        stack.callback(embedded.stop, Path(folder))
        make_template(servers)
        share = usd * (1 - TO_JUDGE) / options.conversations
        here = stack.enter_context(sandbox(servers, NEXUS_BUDGET_USD_PER_DAY=str(share), **{**credentials, **settings}))
        here.worker(concurrency=8)
        asked = questions(options.conversations, options.questions)
        wanted, nexus = 0, Nexus()
        for one in read(LOCOMO, "locomo", namespace="n"):
            if one.namespace in {namespace for namespace, _ in asked}:
                nexus.ingest(one.namespace, one.session_key, one.messages, end=True)
                wanted += len(one.messages)
        done = "SELECT count(*) FROM derivations WHERE state <> 'wanted'"
        eventually(lambda: here.sql(done)[0][0] == wanted, within=3_600, why="not derived: see the budget")
        purse = None
        if options.offline:
            tried, right = cited(nexus, asked)
        else:
            base_url = settings.get("NEXUS_ANTHROPIC_BASE_URL")
            client = anthropic.Anthropic(base_url=base_url, **({"api_key": "stand-in"} if options.stand_in else {}))
            purse = Purse(client, usd * TO_JUDGE)
            tried, right = judged(nexus, purse, asked)
        rows: list[list[object]] = [
            [CATEGORIES[c], tried[c], right[c], f"{right[c] / tried[c]:.2f}"] for c in sorted(tried)
        ]
        print(table(["category", "questions", "right", "share"], rows))
        if purse is None:
            print(
                "\nThe offline model quoted lines. Right: a cited line rests on the evidence, or nothing is remembered."
            )
            return
        [(remembering, asking)] = here.sql(
            "SELECT coalesce(sum(cost_usd) FILTER (WHERE purpose <> 'answer'), 0),"
            " coalesce(sum(cost_usd) FILTER (WHERE purpose = 'answer'), 0) FROM model_calls"
        )
        print(f"\nAnswered by {Settings().model_answer}, judged by {purse.model}.")
        print(
            f"remembering {float(remembering):.4f} USD, asking {float(asking):.4f} USD, judging {purse.spent:.4f} USD"
        )
        if options.stand_in:
            print("The stand-in answered: the shares say nothing about memory.")


if __name__ == "__main__":
    main()
