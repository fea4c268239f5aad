"""For tests, ours and our users': a whole broker inside the process, or beside it.

from mainstem.testing import Broker

with Broker() as broker:                 # or: async with Broker() as broker
    paho_client.connect(broker.host, broker.mqtt_port)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.testing.broker import Broker
    from mainstem.testing.process import BrokerProcess

__all__ = ["Broker", "BrokerProcess"]
_MODULES = {"Broker": "mainstem.testing.broker", "BrokerProcess": "mainstem.testing.process"}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a test of one engine must not load a whole server."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
