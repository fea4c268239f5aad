"""For tests, ours and our users': a whole broker inside the process, or beside it.

from mainstem.testing import Broker

with Broker() as broker:                 # or: async with Broker() as broker
    paho_client.connect(broker.host, broker.mqtt_port)
"""

from mainstem.testing.broker import Broker
from mainstem.testing.process import BrokerProcess

__all__ = ["Broker", "BrokerProcess"]
