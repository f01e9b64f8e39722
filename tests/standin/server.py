"""The stand-in itself: what it was told to do, what it counts, and how one call is answered."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from tests.standin import openai
from tests.standin.answers import default_answer
from tests.standin.batches import Batches, Result
from tests.standin.cache import PromptCache
from tests.standin.faults import Fault, not_found, status
from tests.standin.ledger import Call, Counters, tokens
from tests.standin.protocols import Chat, Messages, call_tool, without
from tests.standin.rules import CUSTOM_ID, MODELS, refuse_params
from tests.standin.wire import Listener, Reply

Predicate = Callable[[Call], bool]
Answer = Callable[[Call], Any]  # returns a dict, a pydantic model, the text itself, or a list of content blocks

KEY = "sk-ant-standin-0123456789"
OPENAI_KEY = "sk-standin-0123456789"


@dataclass
class StandIn:
    """A server on 127.0.0.1 (``port`` 0: any). Use it as a context manager, or ``start`` and ``stop`` it.

    ``latency`` seconds pass before every answer. Batches end ``batch_delay`` seconds after they were submitted; with
    ``None`` they stay in progress until :meth:`end_batches`.
    """

    latency: float = 0.0
    batch_delay: float | None = 0.0
    port: int = 0
    # Features of a real server that this one lacks: it rejects a request that uses one, or ignores it in the request.
    # They are schema, tool, caching, batches, max_tokens, max_completion_tokens, and usage (only to ignore).
    lacks: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.counters = Counters()
        self.faults: deque[Fault] = deque()  # one is used up by each live call
        self.batch_faults: dict[str, Fault] = {}  # of calls about batches: create, list, get, results, cancel
        # What a batch's list of results becomes; the lines need not be the API's.
        self.change_results: Callable[[list[dict[str, Any]]], list[Any]] = lambda lines: lines
        self.models = set(MODELS)
        self._answers: list[tuple[Predicate, Answer]] = []
        self._standing: list[tuple[Predicate, Fault]] = []
        self._cache = PromptCache()
        self._batches = Batches(self._batch_result)
        self._numbers = itertools.count(1)
        self._stopping = threading.Event()
        self._listener = Listener(self, self.port)

    # --- its life -----------------------------------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return self._listener.url

    def start(self) -> StandIn:
        """Begin to serve."""
        self._listener.start()
        return self

    def stop(self) -> None:
        """Stop serving; replies that are still waiting are cut short."""
        self._stopping.set()
        self._listener.stop()

    def __enter__(self) -> StandIn:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """Variables that make a process speak to this stand-in, and to nothing else."""
        return {
            "NEXUS_MODEL": "anthropic",
            "NEXUS_ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": KEY,
            "NO_PROXY": "127.0.0.1",
        }

    def openai_environment(self) -> dict[str, str]:
        """Variables that make a process speak OpenAI's protocol to this stand-in, and nothing else."""
        return {
            "NEXUS_MODEL": "openai",
            "NEXUS_OPENAI_BASE_URL": f"{self.url}/v1",
            "NEXUS_OPENAI_MODEL": "small",
            "OPENAI_API_KEY": OPENAI_KEY,
            "NO_PROXY": "127.0.0.1",
        }

    # --- its script ---------------------------------------------------------------------------------------------------
    def answer(self, which: str | Predicate, make: Answer) -> None:
        """Answer calls of a purpose, or those a predicate picks, with ``make(call)``; the latest rule wins."""
        chosen = (lambda call: call.purpose == which) if isinstance(which, str) else which
        self._answers.insert(0, (chosen, make))

    def always(self, fault: Fault) -> None:
        """Every call from now on goes wrong this way."""
        self.when(lambda _: True, fault)

    def when(self, which: str | Predicate, fault: Fault) -> None:
        """Calls whose prompt holds a text, or those a predicate picks, go wrong this way; the latest rule wins."""
        chosen = (lambda call: which in call.text) if isinstance(which, str) else which
        self._standing.insert(0, (chosen, fault))

    def heal(self) -> None:
        """Take back every fault."""
        self.faults.clear()
        self.batch_faults.clear()
        self._standing.clear()

    def end_batches(self, name: str | None = None) -> None:
        """End one batch, or all of them, now."""
        self._batches.end(name)

    def cancelled_batches(self) -> list[str]:
        """The ids of the batches that were cancelled, newest first."""
        return [batch.id for batch in self._batches.newest_first() if batch.cancelled]

    # --- what the listener asks for -----------------------------------------------------------------------------------
    def message(self, params: dict[str, Any]) -> Reply:
        """``POST /v1/messages``."""
        if refusal := refuse_params(params, self.models, self.lacks):
            return Reply.of(refusal)
        return self._reply(Call(without(params, self.ignores)), Messages(self))

    def chat(self, body: dict[str, Any], deployment: str = "") -> Reply:
        """``POST /v1/chat/completions``, and the same below a deployment of Azure."""
        if refusal := openai.refuse(body | ({"model": deployment} if deployment else {}), self.models, self.lacks):
            return Chat(self).error(refusal)
        return self._reply(Call(openai.as_messages(body, self.ignores), prefix_caching=True), Chat(self))

    def _reply(self, call: Call, protocol: Messages | Chat) -> Reply:
        self.counters.began(call)
        outcome, usage = "cut", {}  # unless it gets to its end
        try:
            fault = self._live_fault(call)
            billed = self._cache.usage(call)  # before the wait: parallel first calls share nothing
            self._stopping.wait(self.latency + (fault.delay if fault else 0))
            if fault and fault.status != 200:
                outcome = fault.name
                return protocol.error(fault)
            message = self._message(call, fault, billed)
            usage = _counts(message["usage"])
            outcome = fault.name if fault else "ok"
            whole = protocol.whole(message)
            cut = bool(fault and fault.cut)
            if call.params.get("stream"):
                return Reply(200, protocol.streamed(whole), kind="text/event-stream", cut=cut)
            return Reply(200, whole, cut=cut)
        finally:
            self.counters.ended(call, outcome, usage)

    def count(self, params: dict[str, Any]) -> Reply:
        """``POST /v1/messages/count_tokens``: a token for every three characters, and seven around each message."""
        if params.get("model") not in self.models:
            return Reply.of(not_found(str(params.get("model"))))
        fault = self._standing_fault(Call({**params, "max_tokens": 1}))
        self._stopping.wait(fault.delay if fault else 0)
        if fault and fault.status != 200:
            return Reply.of(fault)
        said = [message["content"] for message in params["messages"]]
        return Reply(200, {"input_tokens": sum(7 + math.ceil(len(text) / 3) for text in said)})

    def model(self, name: str) -> Reply:
        """``GET /v1/models/{id}``."""
        if name not in self.models:
            return Reply.of(not_found(name))
        about = {"id": name, "type": "model", "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
        return Reply(200, {**about, "lifecycle": "active"})

    def create_batch(self, body: dict[str, Any]) -> Reply:
        """``POST /v1/messages/batches``. As with the real one, an item's params are looked at only when it runs."""
        if "batches" in self.lacks:
            return Reply(404, "404 page not found", kind="text/plain")
        if fault := self.batch_faults.get("create"):
            return Reply.of(fault)
        items = {item.get("custom_id", ""): item.get("params", {}) for item in body.get("requests", [])}
        if not items or len(items) != len(body["requests"]) or not all(map(CUSTOM_ID.match, items)):
            return Reply.of(status(400, "invalid_request_error", "requests: custom_id must be present and unique"))
        batch = self._batches.create(items, self.batch_delay)
        self.counters.batch_began(list(batch.calls.values()))
        return Reply(200, batch.as_dict(self.url))

    def batch(self, name: str, verb: str = "") -> Reply:
        """``GET /v1/messages/batches/{id}``, its ``results``, ``cancel`` and ``delete``."""
        fault = self.batch_faults.get(verb or "get")
        if fault and not fault.cut:
            return Reply.of(fault)
        batch = self._batches.cancel(name) if verb == "cancel" else self._batches.get(name)
        if batch is None:
            return Reply.of(status(404, "not_found_error", f"Message batch {name} not found."))
        if verb in ("results", "delete") and batch.ended is None:
            return Reply.of(status(400, "invalid_request_error", f"Message batch {name} is still in progress."))
        if verb == "results":
            lines = [{"custom_id": custom_id, "result": result} for custom_id, result in batch.results.items()]
            lines = self.change_results(lines)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            return Reply(200, text, kind="application/x-jsonl", cut=bool(fault))
        if verb == "delete":
            self._batches.delete(name)
            return Reply(200, {"id": name, "type": "message_batch_deleted"})
        return Reply(200, batch.as_dict(self.url))

    def batch_list(self) -> Reply:
        """``GET /v1/messages/batches``: all of them on one page."""
        if fault := self.batch_faults.get("list"):
            return Reply.of(fault)
        data = [batch.as_dict(self.url) for batch in self._batches.newest_first()]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return Reply(200, {"data": data, "has_more": False, **ends})

    # --- how a call is answered ---------------------------------------------------------------------------------------
    def _live_fault(self, call: Call) -> Fault | None:
        try:
            return self.faults.popleft()
        except IndexError:
            return self._standing_fault(call)

    def _standing_fault(self, call: Call) -> Fault | None:
        return next((fault for chosen, fault in self._standing if chosen(call)), None)

    def _message(self, call: Call, fault: Fault | None, billed: dict[str, int]) -> dict[str, Any]:
        make = next((make for chosen, make in self._answers if chosen(call)), default_answer)
        answer = make(call)
        content = answer if isinstance(answer, list) else [{"type": "text", "text": _as_text(answer)}]
        uses_tool = any(block["type"] == "tool_use" for block in content)
        message = {
            "id": f"msg_{next(self._numbers):06}",
            "type": "message",
            "role": "assistant",
            "model": call.params["model"],
            "content": content,
            "stop_reason": "tool_use" if uses_tool else "end_turn",
            "stop_sequence": None,
        }
        if fault and fault.change:
            fault.change(message)
        self._cache.finished(call)
        written = sum(tokens(block.get("text") or json.dumps(block)) for block in message["content"])
        message["usage"] = {**billed, "output_tokens": max(written, 1), "service_tier": "standard"}
        if call.tool and not uses_tool and not (fault and fault.name == "says"):
            call_tool(message, call.tool)
        return message

    def _batch_result(self, call: Call) -> Result:
        fault = refuse_params(call.params, self.models, self.lacks) or self._standing_fault(call)
        if fault and fault.status != 200:
            self.counters.batch_item_ended(call, fault.batch, {})
            return {"type": "expired"} if fault.batch == "expired" else {"type": "errored", "error": fault.error()}
        message = self._message(call, fault, self._cache.usage(call))
        message["usage"]["service_tier"] = "batch"
        self.counters.batch_item_ended(call, "succeeded", _counts(message["usage"]))
        return {"type": "succeeded", "message": message}


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in usage.items() if isinstance(value, int)}


def _as_text(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    return answer.model_dump_json() if isinstance(answer, BaseModel) else json.dumps(answer, ensure_ascii=False)
