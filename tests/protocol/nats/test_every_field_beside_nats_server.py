"""Every field of a stream's and a consumer's configuration, with good and bad values: answered as by nats-server."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.nats.jetstream import consumer_config, stream_config
from mainstem.testing import Broker
from tests.protocol.nats.beside import A, Request, answers, differing

S = 1_000_000_000
LATER, EARLIER = "2101-01-01T00:00:00Z", "2001-01-01T00:00:00Z"
MARKERS: dict[str, Any] = {"subject_delete_marker_ttl": 2 * S}

STREAMS: list[dict[str, Any]] = [
    *[{"description": one} for one in ("d", "d" * 5000, 5)],
    *[{"metadata": one} for one in ({"a": "b"}, {"a": "b" * 140_000}, {"a": 1}, 5)],
    *[{"retention": one} for one in ("interest", "workqueue", "x")],
    *[{"max_consumers": one} for one in (3, -5, "x")],
    *[{"max_msgs": one} for one in (5, -7)],
    *[{"max_bytes": one} for one in (1_000_000, -7)],
    *[{"max_age": one} for one in (S, 5, 200 * S, -1)],
    *[{"max_msgs_per_subject": one} for one in (4, -4)],
    *[{"max_msg_size": one} for one in (100, -9)],
    *[{"discard": one} for one in ("new", "x")],
    *[{"storage": one} for one in ("memory", "x")],
    *[{"num_replicas": one} for one in (0, 1, -1, 2, 6)],
    *[{"duplicate_window": one} for one in (S, -1, 5)],
    {"duplicate_window": 2 * S, "max_age": S},
    *[{"placement": one} for one in ({}, {"cluster": "x"}, {"tags": ["a"]}, {"preferred": "x"}, {"x": 1}, 5)],
    *[{"compression": one} for one in ("s2", "x")],
    *[{"first_seq": one} for one in (10, -1)],
    {"subject_transform": {"src": "", "dest": "x.>"}},
    *[{"republish": one} for one in ({"dest": "r.>"}, {"src": "x.>", "dest": "r.>", "headers_only": True})],
    {"allow_direct": True},
    {"mirror_direct": True},
    {"discard_new_per_subject": True, "discard": "new", "max_msgs_per_subject": 1},
    *[{key: True} for key in ("sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "no_ack")],
    *[
        {"consumer_limits": one}
        for one in ({}, {"inactive_threshold": S}, {"max_ack_pending": -5}, {"max_ack_pending": "a"}, {"x": 1}, 5)
    ],
    *[{key: True} for key in ("allow_msg_ttl", "allow_msg_counter", "allow_atomic", "allow_batched")],
    {"allow_msg_schedules": True},
    MARKERS,
    {**MARKERS, "deny_purge": True},
    *[{"persist_mode": one} for one in ("default", "async", "x")],
    {"template_owner": "x"},
    *[{"subjects": one} for one in ([" x"], ["a..b"], [""], ["a.>.b"], ["a", "a"], "x")],
    {"mirror": {"name": "none"}, "subjects": ["x"]},
    {"sources": [{"name": "none"}]},
    {"pedantic": True},
    *[{"pedantic": True, key: -7} for key in ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")],
    {"pedantic": True, "max_age": S},
    {"pedantic": True, **MARKERS},
    {"pedantic": True, **MARKERS, "allow_msg_ttl": True},
    {"pedantic": True, "allow_msg_schedules": True},
    {"pedantic": True, "republish": {"dest": "r.>"}},
    {"pedantic": "x"},
]

CHANGES: list[dict[str, Any]] = [
    {"max_consumers": 4},
    *[{"retention": one} for one in ("interest", "workqueue")],
    *[{key: 1} for key in ("max_msgs", "max_msgs_per_subject")],
    {"storage": "memory"},
    {"discard": "new"},
    *[{key: True} for key in ("sealed", "deny_delete", "deny_purge", "allow_direct", "mirror_direct")],
    *[{key: True} for key in ("allow_msg_counter", "allow_msg_schedules", "allow_atomic", "allow_batched")],
    {"allow_msg_ttl": True},
    {"persist_mode": "async"},
    {"first_seq": 7},
    {"compression": "s2"},
    {"num_replicas": 3},
    {"placement": {"cluster": "x"}},
    {"metadata": {"a": "b"}},
    {"max_age": 3600 * S, "duplicate_window": S},
    {"pedantic": True, "max_msgs": -7},
]

CONSUMERS: list[dict[str, Any]] = [
    {},
    *[{"name": one} for one in ("c", "d")],
    *[{"description": one} for one in ("x", "x" * 5000)],
    *[{"deliver_policy": one} for one in ("last", "last_per_subject", "new", "x")],
    {"deliver_policy": "last_per_subject", "filter_subject": "x.a"},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": -3},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 3, "opt_start_time": EARLIER},
    {"deliver_policy": "by_start_time", "opt_start_seq": 3, "opt_start_time": EARLIER},
    {"deliver_policy": "by_start_time", "opt_start_time": "x"},
    {"opt_start_seq": 3},
    {"opt_start_time": EARLIER},
    *[{"ack_policy": one} for one in ("explicit", "all", "x")],
    *[{"ack_wait": one} for one in (S, -S)],
    *[{"max_deliver": one} for one in (5, -5)],
    *[{"backoff": one} for one in ([S], [-1], "x", ["x"])],
    *[{"backoff": [S, 2 * S], "max_deliver": one} for one in (1, 2, 3)],
    *[{"filter_subject": one} for one in ("x.a", "zzz", "a..b")],
    *[
        {"filter_subjects": one}
        for one in (["x.a", "x.b"], ["x.a", "x.*"], ["x.*.b", "x.a.*"], [""], [], ["a..b", "x"])
    ],
    {"filter_subject": "x.a", "filter_subjects": ["x.b"]},
    *[{"replay_policy": one} for one in ("original", "x")],
    *[{"rate_limit_bps": one, "deliver_subject": "d"} for one in (1_000_000, -5)],
    {"rate_limit_bps": 5},
    *[{"sample_freq": one} for one in ("10%", "-1", "x", "200")],
    *[{"max_waiting": one} for one in (3, -3)],
    *[{"max_waiting": one, "deliver_subject": "d"} for one in (3, -3)],
    *[{"max_ack_pending": one} for one in (3, -1, -3)],
    *[{"max_ack_pending": one, "ack_policy": "explicit"} for one in (3, -1, -3)],
    {"max_ack_pending": 3, "deliver_subject": "d"},
    *[{"flow_control": True, **more} for more in ({}, {"deliver_subject": "d"})],
    {"flow_control": True, "deliver_subject": "d", "idle_heartbeat": S},
    {"headers_only": True},
    *[{"max_batch": one} for one in (3, -3)],
    *[{"max_expires": one} for one in (S, 5, -5)],
    *[{"max_bytes": one} for one in (10, -10)],
    *[{"deliver_subject": one} for one in ("d", "x.a", "d.*", "a..b")],
    {"deliver_subject": "d", "deliver_group": "g"},
    *[{"idle_heartbeat": one, "deliver_subject": "d"} for one in (S, 5, -5)],
    {"idle_heartbeat": S},
    *[{"inactive_threshold": one} for one in (100 * S, -5)],
    *[{"num_replicas": one} for one in (0, 1, 3, -1)],
    {"mem_storage": True},
    *[{"direct": True, **more} for more in ({}, {"deliver_subject": "d"})],
    *[{"metadata": one} for one in ({"a": "b"}, {"a": "b" * 140_000}, {"a": 1}, 5)],
    *[{"pause_until": one} for one in (EARLIER, "x")],
    {"priority_groups": ["a"]},
    {"priority_policy": "overflow"},
    {"priority_timeout": S},
    *[{"priority_groups": ["a"], "priority_policy": one} for one in ("overflow", "pinned_client", "prioritized", "x")],
    *[{"priority_groups": ["a"], "priority_policy": "overflow", "priority_timeout": one} for one in (S, -S)],
    {"x": 1},
]
STRICT: list[dict[str, Any]] = [
    {},
    *[{key: -7} for key in ("max_deliver", "max_waiting", "max_ack_pending", "max_batch", "max_expires", "max_bytes")],
    *[{key: -7} for key in ("idle_heartbeat", "inactive_threshold", "priority_timeout")],
    {"backoff": [S]},
    {"backoff": [S], "ack_wait": S},
]
CONSUMER_CHANGES: list[dict[str, Any]] = [
    {"description": "n"},
    *[{"deliver_policy": one} for one in ("new", "last")],
    {"ack_policy": "all"},
    {"ack_wait": S},
    {"backoff": [S], "max_deliver": 3},
    {"filter_subjects": ["x.b", "x.c"]},
    {"replay_policy": "original"},
    *[{key: 4} for key in ("max_waiting", "max_ack_pending", "max_batch", "max_bytes", "max_deliver")],
    {"headers_only": True},
    {"deliver_subject": "d"},
    {"mem_storage": True},
    {"direct": True},
    {"pause_until": LATER},
    {"priority_groups": ["a"], "priority_policy": "overflow"},
    {"inactive_threshold": 100 * S},
]
LIMITED: list[dict[str, Any]] = [
    {},
    {"ack_policy": "explicit"},
    *[{"ack_policy": "explicit", "max_ack_pending": one} for one in (4, 6, -1)],
    *[{"inactive_threshold": one} for one in (3 * S, 101 * S)],
]


def create(name: str, **config: Any) -> Request:
    return f"{A}STREAM.CREATE.{name}", {"name": name, "subjects": ["x.>"], **config}, {}


def update(name: str, **config: Any) -> Request:
    return f"{A}STREAM.UPDATE.{name}", {"name": name, "subjects": ["x.>"], **config}, {}


def delete(name: str) -> Request:
    return f"{A}STREAM.DELETE.{name}", b"", {}


def consumer(stream: str, config: dict[str, Any], **more: Any) -> Request:
    body = {"stream_name": stream, "config": {"durable_name": "c", **config}, **more}
    return f"{A}CONSUMER.CREATE.{stream}.c", body, {}


def unmake(stream: str) -> Request:
    return f"{A}CONSUMER.DELETE.{stream}.c", b"", {}


async def test_every_field_of_a_stream(broker: Broker, peer: int) -> None:
    requests = [one for n, config in enumerate(STREAMS) for one in (create(f"s{n}", **config), delete(f"s{n}"))]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")
    assert {key for config in STREAMS for key in config} | {"name"} >= stream_config.KNOWN


async def test_every_change_of_a_stream(broker: Broker, peer: int) -> None:
    requests: list[Request] = []
    for n, change in enumerate(CHANGES):
        name = f"u{n}"
        requests += [create(name), ("x.a", b"1", {}), ("x.a", b"2", {}), update(name, **change), ("x.a", b"3", {})]
        requests += [(f"{A}STREAM.PURGE.{name}", {"keep": 1}, {}), update(name)]
        requests += [(f"{A}STREAM.INFO.{name}", b"", {}), delete(name)]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")


async def test_every_field_of_a_consumer(broker: Broker, peer: int) -> None:
    requests: list[Request] = [create("f")]
    for config in CONSUMERS:
        requests += [consumer("f", config), unmake("f")]
    for config in STRICT:
        requests += [consumer("f", config, pedantic=True), unmake("f")]
    requests += [consumer("f", {}, action=action) for action in ("x", "update", "create")]
    requests += [unmake("f"), (f"{A}CONSUMER.CREATE.f", {"stream_name": "f", "config": {"name": "c"}}, {}), unmake("f")]
    filtered = {"stream_name": "f", "config": {"durable_name": "c", "filter_subjects": ["x.a", "x.b"]}}
    requests += [(f"{A}CONSUMER.CREATE.f.c.x.a", filtered, {})]
    long = "x" * 256
    requests += [
        (f"{A}CONSUMER.CREATE.f.{long}", {"stream_name": "f", "config": {"durable_name": long}}, {}),
        delete("f"),
    ]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")
    refused = {"sourcing"}  # what one server asks of another for its mirrors and sources
    told = {key for config in CONSUMERS for key in config} | {"durable_name"}
    assert told | refused >= consumer_config.KNOWN


async def test_every_change_of_a_consumer(broker: Broker, peer: int) -> None:
    requests: list[Request] = [create("g")]
    for change in CONSUMER_CHANGES:
        requests += [consumer("g", {"ack_policy": "explicit"}), consumer("g", {"ack_policy": "explicit", **change})]
        requests += [(f"{A}CONSUMER.INFO.g.c", b"", {}), unmake("g")]
    requests += [delete("g")]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")


async def test_limits_of_a_stream_for_its_consumers(broker: Broker, peer: int) -> None:
    limits = {"inactive_threshold": 100 * S, "max_ack_pending": 5}
    requests: list[Request] = [create("h", consumer_limits=limits)]
    for config in LIMITED:
        requests += [consumer("h", config), unmake("h"), consumer("h", config, pedantic=True), unmake("h")]
    requests += [consumer("h", {"ack_policy": "explicit"})]
    requests += [update("h", consumer_limits={"max_ack_pending": 2})]
    requests += [update("h", consumer_limits={"max_ack_pending": 9, "inactive_threshold": S})]
    requests += [update("h", consumer_limits={"max_ack_pending": 9}), delete("h")]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")


async def test_what_retention_asks_of_consumers(broker: Broker, peer: int) -> None:
    requests: list[Request] = []
    for kind in ("interest", "workqueue"):
        requests += [create(kind, subjects=[f"{kind}.>"], retention=kind)]
        for config in (
            *({"ack_policy": one} for one in ("none", "all", "explicit")),
            *({"ack_policy": one, "deliver_subject": "d"} for one in ("none", "all", "explicit")),
            *({"ack_policy": "explicit", "deliver_policy": one} for one in ("new", "last")),
            *({"ack_policy": "explicit", "num_replicas": one} for one in (1, 2)),
        ):
            requests += [consumer(kind, config), unmake(kind)]
        requests += [delete(kind)]
    assert not await differing(requests, broker.nats_url, f"nats://127.0.0.1:{peer}")


async def test_a_consumer_of_another_servers_mirror_is_refused(broker: Broker) -> None:
    given: list[dict[str, Any]] = [{"sourcing": True}, {"sourcing": True, "deliver_subject": "d"}]
    found = await answers([create("k"), *(consumer("k", config) for config in given)], broker.nats_url)
    assert all(answer[1]["error"]["err_code"] == 10012 for answer in found[1:])
