"""The broker's things as RabbitMQ's management API describes them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psutil

from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.exchanges import TYPES, Binding, Exchange
from mainstem.broker.queues.queue import Queue
from mainstem.broker.queues.registry import Queues
from mainstem.model.errors import NotFound

VERSION = "4.1.0"  # the RabbitMQ whose API this is
NODE = "mainstem@localhost"
RATE_S_MIN = 1.0

_sampled: dict[int, tuple[float, dict[str, int], dict[str, float]]] = {}  # queue id → when, totals, rates


def tags(admin: bool) -> list[str]:
    return ["administrator"] if admin else ["management"]


def _totals(queue: Queue) -> dict[str, int]:
    totals = queue.totals
    return {
        "publish": totals.entered,
        "deliver": totals.delivered,
        "deliver_no_ack": totals.delivered_no_ack,
        "deliver_get": totals.delivered + totals.delivered_no_ack,
        "get": totals.pulled,
        "redeliver": totals.redelivered,
        "ack": totals.acked,
    }


def _rates(queue: Queue, totals: dict[str, int]) -> dict[str, float]:
    """Per second since the last question that was at least RATE_S_MIN ago."""
    now_s = time.monotonic()
    before = _sampled.get(queue.id)
    if before is not None and now_s - before[0] < RATE_S_MIN:
        return before[2]
    rates = dict.fromkeys(totals, 0.0)
    if before is not None:
        rates = {name: (value - before[1][name]) / (now_s - before[0]) for name, value in totals.items()}
    if len(_sampled) > 100_000:
        _sampled.clear()
    _sampled[queue.id] = (now_s, totals, rates)
    return rates


def queue(one: Queue, running: Running, *, detailed: bool = False) -> dict[str, Any]:
    settings, totals = one.settings, _totals(one)
    rates = _rates(one, totals)
    ready, unacked = one.ready, one.unacked
    policy = one.queues.policies.of(one.name, settings.kind)
    stats: dict[str, Any] = dict(totals)
    stats |= {f"{name}_details": {"rate": rate} for name, rate in rates.items()}
    row: dict[str, Any] = {
        "name": one.name,
        "vhost": one.namespace.name,
        "durable": settings.durable,
        "auto_delete": settings.auto_delete,
        "exclusive": settings.exclusive,
        "arguments": settings.arguments,
        "type": settings.kind.value,
        "node": NODE,
        "state": "running",
        "policy": policy.name if policy is not None else None,
        "operator_policy": None,
        "effective_policy_definition": policy.definition if policy is not None else {},
        "messages": ready + unacked,
        "messages_details": {"rate": rates["publish"] - rates["ack"] - rates["deliver_no_ack"]},
        "messages_ready": ready,
        "messages_ready_details": {"rate": rates["publish"] - rates["deliver_get"]},
        "messages_unacknowledged": unacked,
        "messages_unacknowledged_details": {"rate": rates["deliver"] - rates["ack"]},
        "message_bytes_ready": one.ready_bytes,
        "message_bytes": one.ready_bytes,
        "message_stats": stats,
        "consumers": len(one.takers),
        "consumer_capacity": 1.0 if one.sink.wanted else 0.0,
        "consumer_utilisation": 1.0 if one.sink.wanted else 0.0,
        "memory": 0,
        "dead_letters": one.dead_count,
    }
    if not one.takers:
        row["idle_since"] = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(one.used_ms / 1000))
    if detailed:
        row["consumer_details"] = [
            c for c in consumers(running, {one.namespace.name}) if c["queue"]["name"] == one.name
        ]
        row["incoming"], row["deliveries"] = [], []
    return row


def exchange(queues: Queues, one: Exchange) -> dict[str, Any]:
    return {
        "name": one.name,
        "vhost": queues.namespace.name,
        "type": one.arguments.get("x-declared-type", one.type),
        "durable": one.durable,
        "auto_delete": one.auto_delete,
        "internal": one.internal,
        "arguments": {name: value for name, value in one.arguments.items() if name != "x-declared-type"},
        "policy": None,
        "user_who_performed_action": "",
    }


def bindings(queues: Queues) -> Iterator[dict[str, Any]]:
    for one in queues:
        yield _binding(queues.namespace.name, "", True, one.name, one.name, {}, one.name)
    for binding in queues.exchanges.bindings():
        yield _binding(
            queues.namespace.name,
            binding.source,
            binding.to_queue,
            binding.destination,
            binding.key,
            binding.table,
            properties_key(binding),
        )


def properties_key(binding: Binding) -> str:
    """How a binding is told apart from others of the same pair: its key, and its arguments if it has any."""
    key = quote(binding.key, safe="") or "~"
    return key if binding.arguments == "{}" else f"{'' if key == '~' else key}~{binding.arguments}"


def _binding(
    vhost: str, source: str, to_queue: bool, destination: str, key: str, arguments: dict[str, Any], properties: str
) -> dict[str, Any]:
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination,
        "destination_type": "queue" if to_queue else "exchange",
        "routing_key": key,
        "arguments": arguments,
        "properties_key": properties,
    }


def _amqp_connections(running: Running) -> list[Any]:
    server = running.servers.get("amqp")
    return sorted(server.connections, key=lambda c: c.connected_ms) if server is not None else []


def _opened(running: Running, vhosts: set[str]) -> list[Any]:
    """Connections that have opened one of these vhosts."""
    return [one for one in _amqp_connections(running) if one.vhost is not None and one.vhost.name in vhosts]


def _connection_name(connection: Any) -> str:
    peer, own = _addresses(connection)
    return f"{peer[0]}:{peer[1]} -> {own[0]}:{own[1]}"


def _addresses(connection: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    transport = connection.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    own = transport.get_extra_info("sockname") if transport is not None else None
    return tuple(peer or ("", 0)), tuple(own or ("", 0))


def connections(running: Running, vhosts: set[str]) -> list[dict[str, Any]]:
    return [connection(one) for one in _opened(running, vhosts)]


def connection(one: Any) -> dict[str, Any]:
    peer, own = _addresses(one)
    properties = one.lifecycle.client_properties
    return {
        "name": _connection_name(one),
        "user": one.principal.name,
        "vhost": one.vhost.name,
        "state": "blocked" if one.blocking.told else "running",
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "node": NODE,
        "ssl": False,
        "auth_mechanism": one.lifecycle.mechanism,
        "channels": len(one.channels),
        "channel_max": one.lifecycle.channel_max,
        "frame_max": one.lifecycle.frame_max,
        "timeout": one.lifecycle.heartbeat_s,
        "connected_at": one.connected_ms,
        "host": own[0],
        "port": own[1],
        "peer_host": peer[0],
        "peer_port": peer[1],
        "client_properties": properties,
        "user_provided_name": properties.get("connection_name", ""),
        "send_pend": one.unsent_bytes(),
    }


def connection_named(running: Running, name: str, vhosts: set[str]) -> dict[str, Any]:
    return connection(find_connection(running, name, vhosts))


def find_connection(running: Running, name: str, vhosts: set[str]) -> Any:
    for one in _opened(running, vhosts):
        if _connection_name(one) == name:
            return one
    raise NotFound(f"no connection {name!r}")


def channels(running: Running, vhosts: set[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{_connection_name(one)} ({channel.number})",
            "number": channel.number,
            "connection_details": {"name": _connection_name(one)},
            "user": one.principal.name,
            "vhost": one.vhost.name,
            "node": NODE,
            "state": "running",
            "confirm": channel.wire.confirming,
            "transactional": channel.transactional,
            "consumer_count": len(channel.consumers),
            "messages_unacknowledged": channel.wire.unacked,
            "messages_unconfirmed": channel.wire.published - channel.confirmed_to if channel.wire.confirming else 0,
            "messages_uncommitted": len(channel.buffered),
            "acks_uncommitted": 0,
            "prefetch_count": channel.prefetch,
            "global_prefetch_count": channel.wire.unacked_max,
        }
        for one in _opened(running, vhosts)
        for channel in one.channels.values()
    ]


def consumers(running: Running, vhosts: set[str]) -> list[dict[str, Any]]:
    return [
        {
            "queue": {"name": consumer.queue.name, "vhost": one.vhost.name},
            "consumer_tag": consumer.tag,
            "ack_required": not consumer.no_ack,
            "active": True,
            "activity_status": "up",
            "exclusive": consumer.queue.exclusive_taker is consumer,
            "prefetch_count": getattr(consumer, "prefetch", 0),
            "arguments": {},
            "channel_details": {
                "name": f"{_connection_name(one)} ({channel.number})",
                "number": channel.number,
                "connection_name": _connection_name(one),
                "user": one.principal.name,
                "node": NODE,
            },
        }
        for one in _opened(running, vhosts)
        for channel in one.channels.values()
        for consumer in channel.consumers.values()
        if consumer.queue is not None
    ]


def vhost(queues: Queues, running: Running) -> dict[str, Any]:
    ready, unacked = sum(q.ready for q in queues), sum(q.unacked for q in queues)
    return {
        "name": queues.namespace.name,
        "description": "",
        "tags": [],
        "default_queue_type": "classic",
        "cluster_state": {NODE: "running"},
        "tracing": False,
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
    }


def node(running: Running) -> dict[str, Any]:
    process, memory = psutil.Process(), psutil.virtual_memory()
    disk = psutil.disk_usage(str(running.broker.options.data))
    return {
        "name": NODE,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "os_pid": str(os.getpid()),
        "uptime": int((time.time() - running.started_s) * 1000),
        "processors": os.cpu_count(),
        "mem_used": process.memory_info().rss,
        "mem_limit": memory.total,
        "mem_alarm": False,
        "disk_free": disk.free,
        "disk_free_limit": running.broker.maintenance.space_low_bytes,
        "disk_free_alarm": running.broker.maintenance.space_low,
        "fd_used": process.num_fds(),
        "fd_total": process.rlimit(psutil.RLIMIT_NOFILE)[0],
        "sockets_used": len(_amqp_connections(running)),
        "proc_used": process.num_threads(),
        "rates_mode": "basic",
        "partitions": [],
        "applications": [],
        "exchange_types": [{"name": name, "enabled": True} for name in TYPES],
    }


def overview(running: Running, namespaces: list[Namespace]) -> dict[str, Any]:
    all_queues = [one for namespace in namespaces for one in running.broker.queues.of(namespace)]
    ready, unacked = sum(q.ready for q in all_queues), sum(q.unacked for q in all_queues)
    stats: dict[str, Any] = {}
    for one in all_queues:
        totals = _totals(one)
        rates = _rates(one, totals)
        for name, value in totals.items():
            stats[name] = stats.get(name, 0) + value
            details = stats.setdefault(f"{name}_details", {"rate": 0.0})
            details["rate"] += rates[name]
    amqp = _opened(running, {namespace.name for namespace in namespaces})
    exchanges = [running.broker.queues.of(namespace).exchanges for namespace in namespaces]
    return {
        "management_version": VERSION,
        "rabbitmq_version": VERSION,
        "product_name": "Mainstem",
        "product_version": VERSION,
        "erlang_version": "",
        "cluster_name": "mainstem",
        "node": NODE,
        "rates_mode": "basic",
        "exchange_types": [{"name": name, "description": "", "enabled": True} for name in TYPES],
        "message_stats": stats,
        "queue_totals": {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked},
        "object_totals": {
            "connections": len(amqp),
            "channels": sum(len(c.channels) for c in amqp),
            "consumers": sum(len(q.takers) for q in all_queues),
            "queues": len(all_queues),
            "exchanges": sum(len(e.by_name) for e in exchanges),
        },
        "statistics_db_event_queue": 0,
        "listeners": [
            {"node": NODE, "protocol": name, "ip_address": running.config.listeners.host, "port": port}
            for name, port in running.ports.items()
        ],
        "contexts": [],
    }
