"""Whether the compiled modules are in use: all of them or none.

Each hot concept has three files: `_name.pyx` (compiled), `_name_reference.py` (plain Python with the same
interface: the oracle of the property tests and the fallback without a compiler) and `name.py`, the door that
everyone imports. A door reads:

    from mainstem.model.compiled import COMPILED

    if TYPE_CHECKING or not COMPILED:
        from mainstem.codec._batch_reference import BatchBuilder
    else:
        from mainstem.codec._batch import BatchBuilder

`MAINSTEM_PURE=1` chooses plain Python; a checkout without compiled modules does so by itself and says it once.
"""

from __future__ import annotations

import importlib.util
import os

MODULES = (
    "mainstem.codec._batch",
    "mainstem.codec._frames",
    "mainstem.codec._records",
    "mainstem.codec._column_buffers",
    "mainstem.codec._column_topics",
    "mainstem.codec._columns",
    "mainstem.codec._column_batches",
    "mainstem.model._level_tree",
    "mainstem.model._topic_tries",
    "mainstem.cursor._leases",
    "mainstem.cursor._queue_core",
    "mainstem.storage._flusher",
    "mainstem.log._gather",
    "mainstem.log._topic_chunks",
    "mainstem.log._topic_index",
    "mainstem.broker._live",
    "mainstem.broker.queues._lane",
    "mainstem.protocols._reactor",
    "mainstem.protocols.mqtt._encoder",
    "mainstem.protocols.mqtt._outbound",
    "mainstem.protocols.mqtt._publish",
    "mainstem.protocols.mqtt._receipts",
    "mainstem.protocols.mqtt._routes",
    "mainstem.protocols.mqtt._wire",
    "mainstem.protocols.amqp._channel_wire",
    "mainstem.protocols.amqp._outbound",
    "mainstem.protocols.amqp._properties",
    "mainstem.protocols.amqp._wire",
    "mainstem.protocols.kafka._lent_pages",
    "mainstem.protocols.kafka._plain_fetch",
    "mainstem.protocols.kafka._single_batch",
)


def missing_modules() -> list[str]:
    return [name for name in MODULES if importlib.util.find_spec(name) is None]


def _choose() -> bool:
    return os.environ.get("MAINSTEM_PURE", "") in ("", "0") and not missing_modules()


COMPILED: bool = _choose()
