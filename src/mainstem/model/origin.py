"""Which protocol a record entered by, and the flags a broker-encoded record carries in its attributes byte."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Origin(IntEnum):
    """Stored in each frame; the number is part of the format."""

    BROKER = 0
    MQTT = 1
    KAFKA = 2
    AMQP = 3
    NATS = 4
    HTTP = 5
    SPARK = 6


class RecordFlag(IntFlag):
    """Kafka's per-record attributes byte, which its clients ignore. Trusted only where origin is not KAFKA."""

    QOS_1 = 1
    QOS_2 = 2
    RETAIN = 4
    KEY_IS_TOPIC = 8
    DEFAULT_EXCHANGE = 16


QOS_MASK = 3
