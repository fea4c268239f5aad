"""What nats-server tells over HTTP, in its shape, for nats-top and exporters: the fields that mean something here."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

from mainstem.model.whole_numbers import whole_number
from mainstem.protocols.nats.jetstream.infos import API_LEVEL, stream_info
from mainstem.protocols.nats.jetstream.words import time_text

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection, NatsServer

LIMIT = 1024
_ORDERS = ("cid", "subs", "pending", "msgs_to", "msgs_from", "bytes_to", "bytes_from", "start", "idle", "uptime")


class Monitoring:
    def __init__(self, server: NatsServer, version: str) -> None:
        self._server = server
        self._version = version
        self._started_ns = time.time_ns()
        self._bytes_in = self._bytes_out = 0  # of connections that are gone: headers and payloads

    def document(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        """What is told at one path; None where there is nothing."""
        tell = {
            "varz": self.varz,
            "connz": self.connz,
            "subsz": self.subsz,
            "subscriptionsz": self.subsz,
            "jsz": self.jsz,
            "healthz": self.healthz,
        }.get(path)
        return tell(query) if tell is not None else None

    def left(self, connection: NatsConnection) -> None:
        self._bytes_in += connection.inbound.bytes_in
        self._bytes_out += connection.outbound.bytes_out

    def _head(self) -> dict[str, Any]:
        return {"server_id": self._server.server_id, "now": time_text(time.time_ns())}

    def _connections(self) -> list[NatsConnection]:
        return [one for one in self._server.connections if getattr(one, "subscriptions", None) is not None]  # type: ignore[misc]

    def healthz(self, query: dict[str, str]) -> dict[str, Any]:
        return {"status": "ok"}

    def varz(self, query: dict[str, str]) -> dict[str, Any]:
        server, counters, now = self._server, self._server.counters, time.time_ns()
        listeners = server.config.listeners
        used = resource.getrusage(resource.RUSAGE_SELF)
        up_s = (now - self._started_ns) / 1e9
        return {
            "server_id": server.server_id,
            "server_name": "mainstem",
            "version": self._version,
            "proto": 1,
            "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "host": listeners.host,
            "port": listeners.nats_port,
            "max_connections": server.config.limits.connections_max,
            "ping_interval": 120_000_000_000,
            "ping_max": 2,
            "http_host": listeners.host,
            "http_port": listeners.http_port,
            "http_base_path": "",
            "https_port": 0,
            "auth_timeout": server.login_s,
            "max_control_line": 4096,
            "max_payload": server.payload_max,
            "max_pending": 64 << 20,
            "auth_required": not server.broker.access.open,
            "cluster": {},
            "gateway": {},
            "leaf": {},
            "jetstream": {"config": {"store_dir": str(server.broker.options.data)}, "stats": self._stats()},
            "start": time_text(self._started_ns),
            "now": time_text(now),
            "uptime": uptime(int(up_s)),
            "mem": used.ru_maxrss * 1024,
            "cores": os.cpu_count() or 1,
            "cpu": round((used.ru_utime + used.ru_stime) / max(up_s, 0.001) * 100, 2),
            "connections": len(self._connections()),
            "total_connections": server.clients_total,
            "routes": 0,
            "remotes": 0,
            "leafnodes": 0,
            "in_msgs": counters.messages_in,
            "in_bytes": self._bytes_in + sum(one.inbound.bytes_in for one in self._connections()),
            "out_msgs": counters.messages_out,
            "out_bytes": self._bytes_out + sum(one.outbound.bytes_out for one in self._connections()),
            "slow_consumers": server.slow_consumers,
            "subscriptions": sum(len(one.subscriptions.by_sid) for one in self._connections()),
        }

    def connz(self, query: dict[str, str]) -> dict[str, Any]:
        offset, limit = _number(query, "offset", 0), _number(query, "limit", LIMIT)
        rows = [
            self._row(one, with_subs=query.get("subs", "") not in ("", "0", "false")) for one in self._connections()
        ]
        order = query.get("sort", "cid")
        key = {"msgs_to": "out_msgs", "msgs_from": "in_msgs", "bytes_to": "out_bytes", "bytes_from": "in_bytes"}
        name = {"subs": "subscriptions", "pending": "pending_bytes"}.get(order, key.get(order, order))
        rows.sort(key=lambda row: row.get(name, 0), reverse=order in _ORDERS[1:7])
        page = rows[offset : offset + limit]
        return {
            **self._head(),
            "num_connections": len(page),
            "total": len(rows),
            "offset": offset,
            "limit": limit,
            "connections": page,
        }

    def _row(self, one: NatsConnection, *, with_subs: bool) -> dict[str, Any]:
        peer = one.transport.get_extra_info("peername") if one.transport is not None else None
        second, now_ns = one.server.deadlines.second, time.time_ns()
        open_s, idle_s = second - one.opened_second, second - max(one.heard_second, one.opened_second)
        row: dict[str, Any] = {
            "cid": int(one.client_id),
            "kind": "Client",
            "type": "nats",
            "ip": peer[0] if isinstance(peer, tuple) else "",
            "port": peer[1] if isinstance(peer, tuple) else 0,
            "start": time_text(now_ns - open_s * 1_000_000_000),
            "last_activity": time_text(now_ns - idle_s * 1_000_000_000),
            "uptime": uptime(open_s),
            "idle": uptime(idle_s),
            "pending_bytes": one.unsent_bytes(),
            "in_msgs": one.messages_in,
            "out_msgs": one.messages_out,
            "in_bytes": one.inbound.bytes_in,
            "out_bytes": one.outbound.bytes_out,
            "subscriptions": len(one.subscriptions.by_sid),
            "name": one.client_name,
            "lang": one.options.lang,
            "version": one.options.version,
        }
        if one.principal is not None and not getattr(one.principal, "anonymous", False):
            row["authorized_user"] = one.principal.name
        if with_subs:
            row["subscriptions_list"] = [
                sub.subject.decode(errors="replace") for sub in one.subscriptions.by_sid.values()
            ]
        return row

    def subsz(self, query: dict[str, str]) -> dict[str, Any]:
        total = sum(len(one.subscriptions.by_sid) for one in self._connections())
        return {
            **self._head(),
            "num_subscriptions": total,
            "num_cache": 0,
            "num_inserts": self._server.subscribed_total,
            "num_removes": self._server.subscribed_total - total,
            "num_matches": 0,
            "cache_hit_rate": 0,
            "max_fanout": 0,
            "avg_fanout": 0,
            "total": 0,
            "offset": 0,
            "limit": LIMIT,
        }

    def _stats(self) -> dict[str, Any]:
        streams = list(self._server.broker.streams.by_log.values())
        kinds = {
            kind: sum(s.stored_bytes for s in streams if s.config["storage"] == kind) for kind in ("memory", "file")
        }
        api = [self._server.jetstream(namespace) for namespace in self._server.broker.namespaces.values()]
        return {
            "memory": kinds["memory"],
            "storage": kinds["file"],
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": len(self._server.broker.namespaces),
            "ha_assets": 0,
            "api": {
                "level": API_LEVEL,
                "total": sum(one.calls_total for one in api),
                "errors": sum(one.calls_failed for one in api),
            },
        }

    def jsz(self, query: dict[str, str]) -> dict[str, Any]:
        broker = self._server.broker
        streams = list(broker.streams.by_log.values())
        told: dict[str, Any] = {
            **self._stats(),
            **self._head(),
            "config": {"store_dir": str(broker.options.data)},
            "streams": len(streams),
            "consumers": len(broker.streams.by_id),
            "messages": sum(stream.messages for stream in streams),
            "bytes": sum(stream.stored_bytes for stream in streams),
        }
        wants = {
            name: query.get(name, "") not in ("", "0", "false")
            for name in ("accounts", "streams", "consumers", "config")
        }
        if any(wants.values()):
            told["account_details"] = [self._account(name, wants) for name in broker.namespaces]
            told["total"] = len(broker.namespaces)
        return told

    def _account(self, name: str, wants: dict[str, bool]) -> dict[str, Any]:
        namespace = self._server.broker.namespaces[name]
        jetstream = self._server.jetstream(namespace)
        account: dict[str, Any] = {"name": name, "id": name, "storage": 0, "memory": 0}
        if wants["streams"] or wants["consumers"]:
            account["stream_detail"] = details = []
            for stream in jetstream.streams.by_name.values():
                detail = {"name": stream.name, **stream_info(stream, time.time_ns())}
                if not wants["config"]:
                    del detail["config"]
                if wants["consumers"]:
                    detail["consumer_detail"] = [jetstream.info(consumer) for consumer in stream.consumers.values()]
                details.append(detail)
        return account


def uptime(seconds: int) -> str:
    """As nats-server says it: `1d2h3m4s`."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return "".join(f"{count}{unit}" for count, unit in parts)


def _number(query: dict[str, str], name: str, default: int) -> int:
    found = whole_number(query.get(name, ""))
    return default if found is None else found
