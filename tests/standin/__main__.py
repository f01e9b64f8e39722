"""``python -m tests.standin``: serve until told to stop or the lifetime is over, then print the counters as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import threading

from tests.standin.server import StandIn


def main() -> None:
    """Print the URL as the first line, the counters as the last; meanwhile ``GET /counters`` has them."""
    parser = argparse.ArgumentParser(prog="python -m tests.standin", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--batch-delay", type=float, default=0.0, help="seconds until a batch has ended")
    parser.add_argument("--lifetime", type=float, default=3600.0, help="seconds after which it stops by itself")
    given = parser.parse_args()
    over = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: over.set())
    with StandIn(latency=given.latency, batch_delay=given.batch_delay, port=given.port) as standin:
        print(standin.url, flush=True)
        over.wait(given.lifetime)
        print(json.dumps(standin.counters.as_dict()), flush=True)


if __name__ == "__main__":
    main()
