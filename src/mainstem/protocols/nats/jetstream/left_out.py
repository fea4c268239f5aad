"""Calls of JetStream that are not there: answered with nats-server's codes, so that no client waits for its timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.protocols.nats.jetstream import errors

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.protocols.nats.jetstream.api import Call


class LeftOut:
    if TYPE_CHECKING:

        def stream(self, call: Call, at: int = 2) -> Stream: ...

    def on_stream_snapshot(self, call: Call) -> dict[str, Any]:
        self.stream(call)
        raise errors.NO_SNAPSHOTS

    def on_stream_restore(self, call: Call) -> dict[str, Any]:
        raise errors.NO_RESTORE

    def on_stream_leader_stepdown(self, call: Call) -> dict[str, Any]:
        raise errors.CLUSTER_REQUIRED

    on_stream_remove_peer = on_consumer_leader_stepdown = on_stream_leader_stepdown
    on_stream_evacuate_peer = on_stream_cancel_move = on_stream_leader_stepdown
