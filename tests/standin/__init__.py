"""A local stand-in for the Claude API, for tests and benchmarks: Messages, Models and Message Batches over real HTTP.

    with StandIn(latency=0.2) as standin:
        standin.faults.append(faults.throttled(retry_after="7"))     # the next call only
        standin.when("POISON", faults.invalid_json())                # every call whose text holds the marker
        standin.answer("derive", lambda call: {"observations": []})  # in place of the default answer
        ...                                                          # standin.url, standin.environment()
        assert standin.counters.calls == 2

It refuses what the real API refuses (no key, unknown model, an empty text block, a temperature, a schema that is not
closed), counts tokens as characters / 4, and keeps an honest prompt cache.
"""

from tests.standin import faults
from tests.standin.faults import Fault
from tests.standin.isolation import isolate
from tests.standin.ledger import Call, Counters
from tests.standin.server import StandIn

__all__ = ["Call", "Counters", "Fault", "StandIn", "faults", "isolate"]
