"""The broker's own settings under Kafka's names, for tools that ask. They are read-only: the file is the truth."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.kafka.config_table import TOPIC_SETTINGS, Kind, Setting, shown_value


def broker_settings(config: Any, address: tuple[str, int], options: Any) -> list[Setting]:
    host, port = address
    kafka, defaults = config.kafka, options.defaults
    own = [
        ("broker.id", Kind.INT, "1"),
        ("node.id", Kind.INT, "1"),
        ("process.roles", Kind.LIST, "broker,controller"),
        ("listeners", Kind.STRING, f"PLAINTEXT://{config.listeners.host}:{config.listeners.kafka_port}"),
        ("advertised.listeners", Kind.STRING, f"PLAINTEXT://{host}:{port}"),
        ("log.dirs", Kind.STRING, str(options.data)),
        ("num.partitions", Kind.INT, str(defaults.partitions)),
        ("default.replication.factor", Kind.INT, "1"),
        ("offsets.topic.replication.factor", Kind.INT, "1"),
        ("transaction.state.log.replication.factor", Kind.INT, "1"),
        ("auto.create.topics.enable", Kind.BOOLEAN, str(config.topics.auto_create).lower()),
        ("delete.topic.enable", Kind.BOOLEAN, "true"),
        ("socket.request.max.bytes", Kind.INT, str(kafka.request_bytes_max)),
        ("fetch.max.bytes", Kind.INT, str(kafka.fetch_bytes_max)),
        ("max.connections", Kind.INT, str(config.limits.connections_max)),
        ("group.initial.rebalance.delay.ms", Kind.INT, str(kafka.group_rebalance_initial_ms)),
        ("group.min.session.timeout.ms", Kind.INT, str(kafka.session_timeout_min_ms)),
        ("group.max.session.timeout.ms", Kind.INT, str(kafka.session_timeout_max_ms)),
        ("offsets.retention.minutes", Kind.INT, str(kafka.offsets_retention_ms // 60_000)),
        ("producer.id.expiration.ms", Kind.INT, str(kafka.producer_expiry_ms)),
        ("transaction.max.timeout.ms", Kind.INT, str(kafka.transaction_timeout_max_ms)),
        ("group.share.partition.max.record.locks", Kind.INT, str(kafka.share_locks_max)),
        ("group.share.record.lock.duration.ms", Kind.INT, str(kafka.share_lock_ms)),
        ("inter.broker.protocol.version", Kind.STRING, "4.3"),
    ]
    settings = [Setting(name, kind, value) for name, kind, value in own]
    known = {setting.name for setting in settings}
    for topic in TOPIC_SETTINGS.values():
        if topic.synonym and topic.synonym not in known:
            known.add(topic.synonym)
            settings.append(Setting(topic.synonym, topic.kind, shown_value(topic, defaults, {})))
    return settings
