"""What one MQTT client may ask of the broker. Each has a default, a setting, and an answer when it is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    packet_bytes_max: int = 16 * 1024 * 1024  # announced as Maximum Packet Size; beyond: 0x95
    connect_bytes_max: int = 128 * 1024  # before CONNECT is accepted
    connect_timeout_seconds: int = 10
    topic_bytes_max: int = 4096  # beyond: 0x90
    topic_levels_max: int = 128
    client_id_bytes_max: int = 1024  # beyond: 0x85
    user_properties_max: int = 256  # per packet; beyond: 0x97
    subscriptions_max: int = 10_000  # per session; beyond: 0x97 for the filter
    filters_per_packet_max: int = 1024
    receive_maximum: int = 65_535  # unacknowledged publishes from the client; beyond: 0x93
    inflight_max: int = 65_535  # unacknowledged publishes to the client, also where it announces no maximum
    topic_alias_maximum: int = 1024  # from the client
    alias_out_max: int = 64  # to the client, where it allows them
    keep_alive_seconds_max: int = 0  # Server Keep Alive is told where a client asks for more; 0 = never
    session_expiry_seconds_max: int = 0xFFFFFFFF
    connections_max: int = 100_000
    sessions_max: int = 1_000_000
    retained_max: int = 1_000_000
