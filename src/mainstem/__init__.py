"""Mainstem: one append-only log, written once; MQTT, Kafka, AMQP 0-9-1, NATS and Spark read it."""

__version__ = "0.1.0"
