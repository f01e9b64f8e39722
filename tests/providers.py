"""The providers that ``tests/integration/test_providers.py`` holds to one set of promises, each with its stand-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tests.standin import Call, StandIn

PRICES = '{"small": [4.0, 20.0, 5.0, 0.4], "claude-haiku-5-5": [4.0, 20.0, 5.0, 0.4]}'


@dataclass(frozen=True)
class Provider:
    """A provider, and the features that its server lacks, so that the answer comes in the way ``output``."""

    name: str
    output: str = ""
    lacks: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.name}-{self.output}".rstrip("-")

    @property
    def has_server(self) -> bool:
        """Whether calls go over HTTP."""
        return self.name != "offline"

    @contextmanager
    def served(self) -> Iterator[StandIn]:
        """Serve its stand-in. The offline model has one, too, which gets no call."""
        with StandIn(lacks=self.lacks) as standin:
            yield standin

    def environment(self, standin: StandIn) -> Mapping[str, str]:
        """Variables that choose the provider."""
        if self.name == "anthropic":
            return standin.environment() | {"NEXUS_PRICES": PRICES}
        if self.name == "openai":
            return standin.openai_environment() | {"NEXUS_PRICES": PRICES}
        return {"NEXUS_MODEL": "offline"}


PROVIDERS = (
    Provider("anthropic", "schema"),
    Provider("anthropic", "tool", frozenset({"schema"})),
    Provider("anthropic", "json", frozenset({"schema", "tool", "caching", "batches"})),
    Provider("openai", "schema"),
    Provider("openai", "tool", frozenset({"schema"})),
    Provider("openai", "json", frozenset({"schema", "tool"})),
    Provider("offline"),
)
SERVERS = tuple(provider for provider in PROVIDERS if provider.has_server)


def output_of(call: Call) -> str:
    """The way in which a call asked for its answer."""
    if "output_config" in call.params:
        return "schema"
    return "tool" if "tools" in call.params else "json" if "JSON schema" in call.text else "none"
