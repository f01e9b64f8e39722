"""Checks of the options of ``apply_async`` that change a message: its headers, serializer and compression.

Without these checks a wrong option would be found after the claim was made, or only by a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from kombu.compression import encoders, get_encoder
from kombu.exceptions import EncodeError
from kombu.serialization import prepare_accept_content, registry
from kombu.utils.json import dumps

from nexus_tasks.errors import InvalidInput, UnsupportedOption
from nexus_tasks.idempotency.producer.wire_format import HEADER

# Headers that Celery 5.7, kombu and this package write. A caller's header of the same name would replace theirs. The
# headers `stamped_headers` and `stamps` are missing here, because Celery takes them from callers.
RESERVED_HEADERS = frozenset(
    "argsrepr eta expires group group_index id ignore_result kwargsrepr lang origin parent_id replaced_task_nesting"
    f" retries root_id shadow task timelimit compression {HEADER}".split()
)


def check_message_options(app: Celery, options: Mapping[str, Any]) -> None:
    """Check the options of a call of ``apply_async``.

    Raises:
        InvalidInput: the headers are no mapping from texts to JSON values.
        UnsupportedOption: a header replaces one of Celery's, workers do not accept the serializer, or the compression
            is unknown.
    """
    _check_headers(options.get("headers"))
    serializer, compression = options.get("serializer"), options.get("compression")
    if serializer:
        accepted = app.conf.accept_content
        if registry.name_to_type.get(serializer) not in prepare_accept_content(accepted):
            raise UnsupportedOption(f"No worker reads a message in {serializer!r}; they read {', '.join(accepted)}.")
    if compression:
        try:
            get_encoder(compression)
        except (KeyError, TypeError):
            known = ", ".join(encoders())
            raise UnsupportedOption(f"There is no compression {compression!r:.100}; there are {known}.") from None


def _check_headers(headers: Any) -> None:
    if headers is None:
        return
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise InvalidInput("headers must be a mapping with texts as names.")
    if taken := sorted(RESERVED_HEADERS.intersection(headers)):
        raise UnsupportedOption(
            f"The headers {', '.join(taken)} cannot be set, because Celery or nexus-tasks writes them.",
            remedy="Give your headers other names. To set an id or a time, use the options `task_id`, `eta` and so on.",
        )
    try:
        dumps(headers)
    except (TypeError, ValueError, EncodeError, RecursionError) as error:
        raise InvalidInput(f"headers cannot be sent as JSON: {error!s:.200}") from None
