"""Where a message goes, and what its publisher sees again, at the edges of the rules."""

from __future__ import annotations

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import bodies, declared, eventually


def test_an_empty_key_has_no_word_that_a_star_could_match(channel: BlockingChannel, name: str) -> None:
    queues = {}
    for number, pattern in enumerate(("#", "", "#.#", "*", "*.#", "#.*")):
        queues[pattern] = declared(channel, f"{name}-{number}", exclusive=True)
        channel.queue_bind(queues[pattern], "amq.topic", pattern)
    channel.basic_publish("amq.topic", "", b"empty")
    channel.basic_publish("amq.topic", name, b"one")
    got = {pattern: bodies(channel, queue) for pattern, queue in queues.items()}
    both = [b"empty", b"one"]
    assert got == {"#": both, "": [b"empty"], "#.#": both, "*": [b"one"], "*.#": [b"one"], "#.*": [b"one"]}


def test_bytes_in_a_headers_binding_match_bytes_and_text(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, exclusive=True)
    channel.queue_bind(queue, "amq.headers", "", arguments={"tag": b"1", "run": name})
    for tag in (b"1", "1", b"2"):
        properties = pika.BasicProperties(headers={"tag": tag, "run": name})
        channel.basic_publish("amq.headers", "", repr(tag).encode(), properties)
    assert bodies(channel, queue) == [b"b'1'", b"'1'"]


def test_a_returned_message_does_not_tell_its_blind_copies(channel: BlockingChannel, name: str) -> None:
    returned: list[Any] = []
    channel.add_on_return_callback(lambda _, method, properties, body: returned.append(properties.headers))
    headers = {"CC": [name + "-cc"], "BCC": [name + "-bcc"], "kept": 1}
    channel.basic_publish("", name, b"", pika.BasicProperties(headers=headers), mandatory=True)
    eventually(lambda: channel.connection.process_data_events(0.02) or returned)
    assert returned == [{"CC": [name + "-cc"], "kept": 1}]
