"""Every setting there is: its default, what it may be, and what it does. The reference page is made from this file.

Sections are plain dataclasses, so that the rest of the code reads `config.limits.connections_max`.
A setting marked `live` takes effect on SIGHUP; the others at the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any

from mainstem.server.kinds import (
    ADDRESS,
    AMOUNT,
    DURABILITY,
    DURATION,
    DURATION_OR_UNLIMITED,
    FLAG,
    NAMES,
    PORT,
    SIZE,
    SIZE_OR_UNLIMITED,
    TEXT,
    UNLIMITED,
    choice,
    count,
    share,
)
from mainstem.server.protocols import doors
from mainstem.server.security_settings import Audit, Jwt, Oidc
from mainstem.server.security_settings import Tls as Tls
from mainstem.server.setting import DAY, GIB, HOUR, KIB, MIB, MINUTE, SECOND, setting
from mainstem.server.setting import Setting as Setting
from mainstem.storage.engines import ENGINES

ENGINE = choice(*ENGINES)
LAYOUT = choice("shared", "dedicated")
TIER = choice("none", "s3", "iceberg")
SEARCH_INDEX = choice("auto", "off")
SHARE_KEYS = choice("none", "writers", "readers")
OVERFLOW = choice("ring", "refuse")
SCHEMA_MODE = choice("refuse", "dead-letter", "off")
SHARE = share()
CLEANUP = choice("delete", "compact", "compact,delete")
PARTITIONS = count(1, 1_000)


@dataclass(slots=True)
class ListenerSettings:
    """Where clients connect. A port of 0 takes any free one."""

    host: str = setting(
        "127.0.0.1",
        TEXT,
        "Address to listen on; `127.0.0.1` means `::1`, too. Anything but loopback needs users, or `allow_anonymous`.",
    )
    allow_anonymous: bool = setting(
        False,
        FLAG,
        "Serve beyond loopback without any user defined (also `--insecure-allow-anonymous`).",
    )
    backlog: int = setting(
        1024,
        count(1, 65_535),
        "Connections the kernel may queue before they are accepted.",
    )


def _ports() -> list[tuple[str, Any, Any]]:
    """A setting for the port of each door, and of its twin with TLS."""
    plain = [(f"{door.name}_port", int | None, setting(door.port, PORT, door.doc)) for door in doors()]
    twins = [
        (
            f"{door.tls_name}_port",
            int | None,
            setting(door.tls_port, PORT, f"{door.label} over TLS; only with `[tls] certificate`."),
        )
        for door in doors()
    ]
    return [*plain, *twins]


if TYPE_CHECKING:
    Listeners = ListenerSettings
else:
    Listeners = make_dataclass("Listeners", _ports(), bases=(ListenerSettings,), slots=True)
    Listeners.__doc__ = ListenerSettings.__doc__


@dataclass(slots=True)
class Data:
    """Where bytes rest."""

    directory: str = setting(
        "./mainstem-data",
        TEXT,
        "The data directory (mode 0700; one process at a time).",
    )
    space_low_bytes: int = setting(
        512 * MIB,
        SIZE,
        "With less free space on the disk, publishes are refused and reads go on.",
        live=True,
    )
    retention_check_ms: int = setting(
        30 * SECOND,
        DURATION,
        "How often the broker looks for what retention, compaction and moves to the store have to do; a second at least.",
        live=True,
    )
    lost_kept_ms: int = setting(
        7 * DAY, DURATION, "How long a log without records that no topic names is kept in `lost/`."
    )


@dataclass(slots=True)
class Topics:
    """What a topic is when no policy says otherwise."""

    engine: str = setting("segment", ENGINE, "Where its bytes rest.")
    layout: str = setting(
        "shared",
        choice("shared", "dedicated"),
        "`shared`: in the namespace's main stem; `dedicated`: a log per partition.",
    )
    partitions: int = setting(1, PARTITIONS, "Partitions of a dedicated topic.")
    store: bool = setting(
        True,
        FLAG,
        "`false`: live only. What is published goes to who listens now and is kept nowhere (docs/storage.md).",
    )
    retention_ms: int = setting(
        7 * DAY,
        DURATION_OR_UNLIMITED,
        "Records older than this are dropped, by whole segments.",
    )
    retention_bytes: int = setting(
        UNLIMITED,
        SIZE_OR_UNLIMITED,
        "Size a partition is cut back to. Setting it makes the topic dedicated.",
    )
    durability: str = setting("sync", DURABILITY, "When a publish counts as done, and is acked.")
    message_bytes_max: int = setting(16 * MIB, SIZE, "Largest record (or Kafka batch) accepted.")
    cleanup: str = setting(
        "delete", CLEANUP, "`compact` keeps the last record per key. Setting it makes the topic dedicated."
    )
    delete_retention_ms: int = setting(DAY, DURATION, "How long compaction keeps a tombstone.")
    compaction_lag_min_ms: int = setting(0, DURATION, "Records younger than this are not compacted.")
    compaction_lag_max_ms: int = setting(
        0, DURATION, "Records older than this are compacted soon; 0 leaves it to the share of waste."
    )
    segment_bytes: int = setting(
        64 * MIB, SIZE, "Segments are sealed at this size; retention and backup work on sealed ones."
    )
    segment_ms: int = setting(7 * DAY, DURATION, "Segments are sealed at this age.")
    keep_until_archived: bool = setting(
        False, FLAG, "Retention drops a segment only once an archive holds its records (mainstem lake archive)."
    )
    tier: str = setting(
        "none",
        TIER,
        "`s3`: sealed segments move to the object store of `[tier]`; `iceberg`: as files of a table there.",
    )
    local_retention_ms: int = setting(
        DAY, DURATION_OR_UNLIMITED, "With a tier: segments older than this are kept in the store only."
    )
    local_retention_bytes: int = setting(
        UNLIMITED, SIZE_OR_UNLIMITED, "With a tier: size of a log beyond which its oldest segments are kept there only."
    )
    search_index: str = setting(
        "auto", SEARCH_INDEX, "`auto`: sealed segments get an index of their words, which `mainstem search` uses."
    )
    overflow: str = setting(
        "ring",
        OVERFLOW,
        "When a memory log is full. `ring`: its oldest records go, unless they are held; `refuse`: publishes are refused.",
    )
    schema: str = setting("", TEXT, "A subject of the schema registry that values must match (docs/schemas.md).")
    schema_mode: str = setting(
        "refuse",
        SCHEMA_MODE,
        "What happens to those that do not: `refuse`, `dead-letter` (they go to `dead/TOPIC`) or `off`.",
    )
    trace: str = setting(
        "", SHARE, "Share of its messages whose way is followed, for example `1%`; see docs/tracing.md."
    )
    auto_create: bool = setting(
        True, FLAG, "Publishing to a topic that is not there makes it; so does asking for its Kafka metadata."
    )


@dataclass(slots=True)
class Policy:
    """What topics that match a filter are, over `[topics]`. Where several match, the most specific wins."""

    engine: str | None = setting(None, ENGINE, "As `topics.engine`.")
    layout: str | None = setting(None, LAYOUT, "As `topics.layout`.")
    partitions: int | None = setting(None, PARTITIONS, "As `topics.partitions`.")
    store: bool | None = setting(None, FLAG, "As `topics.store`.")
    retention_ms: int | None = setting(None, DURATION_OR_UNLIMITED, "As `topics.retention_ms`.")
    retention_bytes: int | None = setting(None, SIZE_OR_UNLIMITED, "As `topics.retention_bytes`.")
    durability: str | None = setting(None, DURABILITY, "As `topics.durability`.")
    message_bytes_max: int | None = setting(None, SIZE, "As `topics.message_bytes_max`.")
    cleanup: str | None = setting(None, CLEANUP, "As `topics.cleanup`.")
    delete_retention_ms: int | None = setting(None, DURATION, "As `topics.delete_retention_ms`.")
    compaction_lag_min_ms: int | None = setting(None, DURATION, "As `topics.compaction_lag_min_ms`.")
    compaction_lag_max_ms: int | None = setting(None, DURATION, "As `topics.compaction_lag_max_ms`.")
    segment_bytes: int | None = setting(None, SIZE, "As `topics.segment_bytes`.")
    segment_ms: int | None = setting(None, DURATION, "As `topics.segment_ms`.")
    keep_until_archived: bool | None = setting(None, FLAG, "As `topics.keep_until_archived`.")
    tier: str | None = setting(None, TIER, "As `topics.tier`.")
    local_retention_ms: int | None = setting(None, DURATION_OR_UNLIMITED, "As `topics.local_retention_ms`.")
    local_retention_bytes: int | None = setting(None, SIZE_OR_UNLIMITED, "As `topics.local_retention_bytes`.")
    search_index: str | None = setting(None, SEARCH_INDEX, "As `topics.search_index`.")
    overflow: str | None = setting(None, OVERFLOW, "As `topics.overflow`.")
    schema: str | None = setting(None, TEXT, "As `topics.schema`.")
    schema_mode: str | None = setting(None, SCHEMA_MODE, "As `topics.schema_mode`.")
    trace: str | None = setting(None, SHARE, "As `topics.trace`.")


@dataclass(slots=True)
class TierStore:
    """The object store for topics with `tier = "s3"` or `engine = "object"` (docs/object-storage.md). Credentials come from
    the environment or the machine's role, as with other tools of that store."""

    store: str = setting(
        "", TEXT, "`s3://BUCKET/PREFIX`, `gs://`, `az://` or `file:///DIRECTORY`; a prefix of its own for each broker."
    )
    endpoint: str = setting("", TEXT, "Address of an S3-compatible store; empty is the provider's own.")
    region: str = setting("", TEXT, "Region of the bucket; empty takes it from the environment.")
    path_style: bool = setting(True, FLAG, "Name the bucket in the path of requests, not in the host.")
    encryption: str = setting(
        "none",
        choice("none", "AES256", "aws:kms", "aws:kms:dsse"),
        "Encryption to ask the store for; `none`: the bucket's.",
    )
    kms_key: str = setting("", TEXT, "The key for `aws:kms`.")
    timeout_ms: int = setting(30 * SECOND, DURATION, "How long one request may take; then it is tried again.")
    cache_bytes: int = setting(GIB, SIZE, "Local disk for what was read of the store lately; at least 64MiB.")
    grace_ms: int = setting(HOUR, DURATION, "How long an object stays in the store after nothing names it any more.")
    manifest_ms: int = setting(
        5 * MINUTE,
        DURATION,
        "The shortest time between two manifests of what the bucket holds, for `mainstem restore s3://...`.",
    )
    backlog_bytes_max: int = setting(
        UNLIMITED,
        SIZE_OR_UNLIMITED,
        "Sealed and not uploaded yet; beyond it publishes to topics with a tier are refused.",
    )
    catalog: str = setting(
        "",
        TEXT,
        'Catalog of the tables of `tier = "iceberg"`: an Iceberg REST or SQLAlchemy URL; empty is a local file.',
    )
    bundle_bytes: int = setting(
        8 * MIB, SIZE, "Engine `object`: records of all its topics that travel in one object, at most about."
    )
    bundle_ms: int = setting(250, DURATION, "Engine `object`: how long a record waits for others, so also its ack.")
    unstored_bytes_max: int = setting(
        256 * MIB,
        SIZE,
        "Engine `object`: records on their way to the store, in memory; beyond it publishes are refused.",
    )
    price_stored: float = setting(
        0.023, AMOUNT, "What the store takes for a GB in a month; for the metric of the cost."
    )
    price_puts: float = setting(0.005, AMOUNT, "For a thousand PUTs.")
    price_gets: float = setting(0.0004, AMOUNT, "For a thousand GETs.")


@dataclass(slots=True)
class Cluster:
    """More than one machine (docs/cluster.md): brokers with the same PostgreSQL and `tier.store` serve the same data."""

    postgres: str = setting(
        "",
        ADDRESS,
        "`postgresql://USER@HOST/DATABASE` (also `--cluster`); empty: this broker is alone. The password is in `PGPASSWORD` "
        "or a password file.",
    )
    name: str = setting("", TEXT, "This broker's name in the cluster; empty takes the machine's.")
    host: str = setting("", TEXT, "Where other brokers and Kafka clients reach this one; empty: `listeners.host`.")
    relay_port: int = setting(7071, count(0, 65_535), "Port for the other brokers; 0 takes any free one.")
    cells: str = setting(
        "shared",
        choice("shared", "per-namespace"),
        "Where a namespace goes that is added without `--cell`: `shared`: the cell `main`, `per-namespace`: one of its own.",
    )
    cell_ports: int = setting(
        0, count(0, 64_000), "The process of cell N has this port plus N for the other brokers; 0 takes any free one."
    )
    moves_per_hour: int = setting(
        20, count(0), "Cells that balancing moves at most in an hour; 0 moves none.", live=True
    )
    roles: tuple[str, ...] = setting(
        (),
        NAMES,
        "What this broker is for: `cells` (it may own them) and protocols whose clients it takes (`mqtt`, `kafka`, `amqp`, "
        "`nats`, `http`); empty: everything.",
    )
    single_postgres: bool = setting(
        False,
        FLAG,
        "Take a PostgreSQL without a synchronous standby: what it loses is lost (also `--single-postgres`).",
    )


@dataclass(slots=True)
class Limits:
    """What one client, or all of them, may take. Checked before memory is spent."""

    connections_max: int = setting(20_000, count(1), "Connections in all.", live=True)
    connections_per_address_max: int = setting(
        10_000,
        count(1),
        "Connections from one address; loopback is not counted.",
        live=True,
    )
    connections_per_address_rate: int = setting(
        500,
        count(1),
        "New connections a second from one address (bursts of four times that); loopback is not counted.",
        live=True,
    )
    login_ms: int = setting(
        5 * SECOND,
        DURATION,
        "From connecting to being logged in; then the connection is closed.",
    )
    login_failures_max: int = setting(
        10,
        count(1),
        "Failed logins of a user at one address before it must wait there: a second, then twice as long each time.",
        live=True,
    )
    unsynced_bytes_max: int = setting(
        256 * MIB, SIZE, "Written and not yet durable, in all logs; beyond it publishers wait.", live=True
    )
    unsynced_bytes_per_log_max: int = setting(64 * MIB, SIZE, "The same for one log; its publishers wait.", live=True)
    output_bytes_max: int = setting(
        MIB,
        SIZE,
        "What a client may leave unread; beyond it the broker writes nothing more to it until it has read on.",
    )
    output_bytes_total_max: int = setting(
        256 * MIB,
        SIZE,
        "What all clients together may leave unread; beyond it each may leave 64KiB until half of it is gone.",
        live=True,
    )
    input_bytes_total_max: int = setting(
        256 * MIB,
        SIZE,
        "Messages of all clients together that are not whole yet; beyond it the client that holds most is cut off.",
        live=True,
    )
    open_files_max: int = setting(4_000, count(16), "Segment files kept open; the ones used longest ago are closed.")
    dedicated_logs_max: int = setting(
        10_000, count(1), "Logs in all: partitions of dedicated topics, and stems. Shared topics need none."
    )
    topics_max: int = setting(
        10_000_000, count(1, 2**32 - 2), "Topics that a shared log knows; beyond it new ones are refused."
    )
    frame_bytes_max_before_login: int = setting(64 * KIB, SIZE, "Largest packet or frame before the login.")
    topic_bytes_max: int = setting(1_024, count(1, 1_024), "Bytes of a topic name.")
    topic_levels_max: int = setting(256, count(1, 256), "Levels of a topic name.")
    headers_max: int = setting(128, count(0), "User properties (MQTT) or headers (HTTP) of one record.")
    inflate_bytes_max: int = setting(
        64 * MIB,
        SIZE,
        "What a compressed batch may inflate to, checked while inflating.",
    )
    drain_ms: int = setting(
        10 * SECOND,
        DURATION,
        "How long a stop waits for clients to be notified and data to be synced.",
    )


@dataclass(slots=True)
class Mqtt:
    """MQTT 3.1.1 and 5, over TCP and WebSocket."""

    keep_alive_max_s: int = setting(3_600, count(1, 65_535), "Longest keep-alive granted, in seconds.")
    receive_max: int = setting(65_535, count(1, 65_535), "QoS 1 and 2 messages in flight, each way.")
    subscriptions_max: int = setting(1_000, count(1), "Subscriptions of one session.")
    topic_alias_max: int = setting(1_024, count(0, 65_535), "Topic aliases a client may set.")
    session_expiry_max_ms: int = setting(7 * DAY, DURATION, "Longest session expiry granted.")
    session_held_ms_max: int = setting(
        7 * DAY,
        DURATION,
        "How long an absent session may hold messages back from retention.",
    )
    session_held_messages_max: int = setting(
        100_000, count(0), "Messages an absent session may hold back; beyond it retention no longer waits for it."
    )
    session_held_bytes_max: int = setting(64 * MIB, SIZE, "Bytes it may hold back, likewise.")
    retained_max: int = setting(1_000_000, count(0), "Retained messages in one namespace.")
    sys_interval_ms: int = setting(10 * SECOND, DURATION, "How often `$SYS/broker/...` is published; 0 is never.")
    ws_path: str = setting("/mqtt", TEXT, "Path of MQTT over WebSocket.")
    ws_origins: tuple[str, ...] = setting((), NAMES, "Web origins, beyond our own, that may open a WebSocket.")


@dataclass(slots=True)
class Kafka:
    """The Kafka protocol."""

    advertised_host: str = setting("", TEXT, "Host that clients are sent to; empty: the address each of them dialled.")
    advertised_port: int = setting(0, count(0, 65_535), "Port that clients are sent to; 0: the listener's.")
    advertised_tls_port: int = setting(
        0, count(0, 65_535), "Port that clients with TLS are sent to; 0: the listener's."
    )
    cluster_id: str = setting("", TEXT, "Cluster id; empty makes one at the first start.")
    request_bytes_max: int = setting(100 * MIB, SIZE, "Largest request.")
    fetch_bytes_max: int = setting(64 * MIB, SIZE, "Largest fetch answer.")
    group_rebalance_initial_ms: int = setting(500, DURATION, "How long an empty group waits for more members to join.")
    session_timeout_min_ms: int = setting(1 * SECOND, DURATION, "Shortest session timeout a group member may ask for.")
    session_timeout_max_ms: int = setting(30 * MINUTE, DURATION, "Longest session timeout a group member may ask for.")
    offsets_retention_ms: int = setting(7 * DAY, DURATION, "How long an empty group keeps its offsets.")
    producer_expiry_ms: int = setting(DAY, DURATION, "How long an idle producer's sequence numbers are kept.")
    transaction_timeout_max_ms: int = setting(
        15 * MINUTE, DURATION, "Longest transaction timeout a producer may ask for."
    )
    share_locks_max: int = setting(
        2_000,
        count(1, 1_000_000),
        "Records of a partition that a share group's members may hold, unless the group says.",
    )
    share_lock_ms: int = setting(
        30 * SECOND, DURATION, "How long a share group's member may hold a record, unless the group says."
    )


@dataclass(slots=True)
class Amqp:
    """AMQP 0-9-1, as RabbitMQ speaks it."""

    frame_bytes_max: int = setting(128 * KIB, SIZE, "Largest frame offered to clients.")
    channels_max: int = setting(2_047, count(1, 65_535), "Channels of one connection.")
    heartbeat_s: int = setting(60, count(0, 65_535), "Heartbeat offered to clients, in seconds; 0 is none.")


@dataclass(slots=True)
class Nats:
    """NATS. With a certificate a client may begin TLS on the plain port; the other port begins with it."""

    tls: str = setting(
        "available", choice("available", "required"), "Whether a client on the plain port may, or must, begin TLS."
    )


@dataclass(slots=True)
class Lake:
    """The lakehouse that the broker serves as an Iceberg REST catalog (docs/lakehouse.md). Needs `mainstem[lake]`."""

    warehouse: str = setting("", TEXT, "Where tables lie, as of `mainstem lake --warehouse`; empty serves none.")
    catalog: str = setting("", TEXT, "Its catalog, a SQLAlchemy URL; empty is the SQLite file in the warehouse.")
    share_keys: str = setting(
        "none",
        SHARE_KEYS,
        "Who gets the keys of the warehouse's bucket with a table: nobody, who may commit, or who may read.",
    )


@dataclass(slots=True)
class Http:
    """HTTP API, metrics and console."""

    hosts: tuple[str, ...] = setting(
        (),
        NAMES,
        "Host names, beyond loopback and `listeners.host`, that requests may name.",
        live=True,
    )
    body_bytes_max: int = setting(20 * MIB, SIZE, "Largest request body.")
    page_rows_max: int = setting(500, count(1, 10_000), "Rows a list answers at once.")
    console: bool = setting(True, FLAG, "Serve the console at `/`.")
    metrics_public: bool = setting(True, FLAG, "Serve `/metrics` without a login.", live=True)
    rabbit_api: bool = setting(True, FLAG, "Serve RabbitMQ's management API at `/api`.")
    session_ms: int = setting(
        12 * HOUR, DURATION, "How long a login by the console's login page lasts (docs/security.md).", live=True
    )
    tails_max: int = setting(100, count(1), "Live tails (server-sent events) at once.", live=True)
    asks_max: int = setting(
        2, count(1), "Queries and searches answered at once, each in a process of its own.", live=True
    )
    ask_bytes_max: int = setting(512 * MIB, SIZE, "Memory that a query or search may use.", live=True)
    ask_ms_max: int = setting(60_000, DURATION, "Time that a query or search may take.", live=True)


@dataclass(slots=True)
class Trace:
    """Where the ways of traced messages (`topics.trace`) are sent."""

    otlp_url: str = setting(
        "", TEXT, "OpenTelemetry collector that gets them as spans, for example `http://localhost:4318/v1/traces`."
    )


@dataclass(slots=True)
class Logging:
    """What the process writes to standard error."""

    level: str = setting(
        "info",
        choice("debug", "info", "warning", "error"),
        "How much is written.",
        live=True,
    )
    format: str = setting("text", choice("text", "json"), "A line of text, or a JSON object, per event.")


@dataclass(slots=True)
class Config:
    """Everything, with the policies by topic filter."""

    listeners: Listeners = field(default_factory=Listeners)
    tls: Tls = field(default_factory=Tls)
    jwt: Jwt = field(default_factory=Jwt)
    oidc: Oidc = field(default_factory=Oidc)
    data: Data = field(default_factory=Data)
    topics: Topics = field(default_factory=Topics)
    tier: TierStore = field(default_factory=TierStore)
    cluster: Cluster = field(default_factory=Cluster)
    limits: Limits = field(default_factory=Limits)
    mqtt: Mqtt = field(default_factory=Mqtt)
    kafka: Kafka = field(default_factory=Kafka)
    amqp: Amqp = field(default_factory=Amqp)
    nats: Nats = field(default_factory=Nats)
    http: Http = field(default_factory=Http)
    lake: Lake = field(default_factory=Lake)
    trace: Trace = field(default_factory=Trace)
    audit: Audit = field(default_factory=Audit)
    logging: Logging = field(default_factory=Logging)
    policies: dict[str, Policy] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # dotted key → where its value came from; absent: default


SECTIONS: dict[str, type] = {
    "listeners": Listeners,
    "tls": Tls,
    "jwt": Jwt,
    "oidc": Oidc,
    "data": Data,
    "topics": Topics,
    "tier": TierStore,
    "cluster": Cluster,
    "limits": Limits,
    "mqtt": Mqtt,
    "kafka": Kafka,
    "amqp": Amqp,
    "nats": Nats,
    "http": Http,
    "lake": Lake,
    "trace": Trace,
    "audit": Audit,
    "logging": Logging,
}

ALIASES = {  # Kafka's names of topic settings that differ by more than dots: a topic's configuration can be pasted
    "max_message_bytes": "message_bytes_max",
    "cleanup_policy": "cleanup",
    "min_compaction_lag_ms": "compaction_lag_min_ms",
    "max_compaction_lag_ms": "compaction_lag_max_ms",
    "mainstem_storage": "engine",
    "mainstem_layout": "layout",
    "mainstem_keep_until_archived": "keep_until_archived",
}
