"""Every metric there is: its name, kind and meaning. docs/metrics.md is made from this table, and a test compares.

Names follow Prometheus: one prefix, base units, the unit last, `_total` for counters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str  # counter | gauge | histogram | summary
    text: str
    labels: tuple[str, ...] = ()
    per_object: bool = False  # a series for each thing: only where it is asked for


FLOW = ("namespace", "pipeline", "flow")
QUOTA_LABELS = ("kind", "name", "quota")

FAMILIES: dict[str, tuple[Family, ...]] = {
    "The process": (
        Family("mainstem_build_info", "gauge", "What is running.", ("version",)),
        Family("mainstem_uptime_seconds", "gauge", "Since the start."),
        Family("mainstem_ready", "gauge", "1 while listeners are open."),
        Family("process_resident_memory_bytes", "gauge", "Memory in use."),
        Family("process_cpu_seconds_total", "counter", "Processor time used."),
        Family("process_open_fds", "gauge", "Open files and sockets."),
        Family("process_max_fds", "gauge", "How many there may be."),
        Family("mainstem_loop_lag_seconds", "gauge", "How late the loop woke up last; sampled each second."),
        Family("mainstem_loop_lag_max_seconds", "gauge", "The latest it ever woke up."),
        Family(
            "mainstem_loop_stall_seconds",
            "summary",
            "Turns of the loop of more than 20 ms, by the module that took them (`compiled`: code without a Python frame); "
            "`elsewhere` is not ours. Time for which the loop waited for a core does not count.",
            ("cause",),
        ),
        Family("mainstem_loop_stall_max_seconds", "gauge", "The longest of them.", ("cause",)),
        Family("mainstem_ticks_total", "counter", "Turns of the loop that wrote or sent."),
        Family("mainstem_background_tasks", "gauge", "What runs in the background now.", ("task",)),
        Family("mainstem_http_tails", "gauge", "Live tails that are open."),
        Family("mainstem_http_requests_total", "counter", "HTTP requests."),
    ),
    "Traffic": (
        Family(
            "mainstem_messages_total",
            "counter",
            "Messages published (in) and delivered (out).",
            ("protocol", "direction"),
        ),
        Family(
            "mainstem_bytes_total",
            "counter",
            "Bytes read from (in) and written to (out) sockets.",
            ("protocol", "direction"),
        ),
        Family(
            "mainstem_topic_records_total",
            "counter",
            "Records that came to a topic since it is followed: the 200 busiest ones, and those whose page was looked at.",
            ("namespace", "topic"),
            per_object=True,
        ),
        Family(
            "mainstem_namespace_records_total",
            "counter",
            "Records ever written to the logs of a namespace.",
            ("namespace",),
            per_object=True,
        ),
        Family(
            "mainstem_namespace_bytes",
            "gauge",
            "Bytes stored of a namespace, on the local disk and in the object store.",
            ("namespace",),
            per_object=True,
        ),
        Family("mainstem_traces_skipped_total", "counter", "Messages sampled for `trace` and not followed."),
        Family("mainstem_connections", "gauge", "Open connections.", ("protocol",)),
        Family("mainstem_connections_total", "counter", "Connections ever accepted.", ("protocol",)),
        Family("mainstem_unfinished_bytes", "gauge", "Received of messages that are not whole yet."),
        Family("mainstem_unfinished_cut_total", "counter", "Clients cut off because these were too many bytes."),
        Family("mainstem_unsent_bytes", "gauge", "Written to clients that have not read it yet."),
        Family("mainstem_audit_events_total", "counter", "Events written to `$audit`."),
        Family("mainstem_audit_left_out_total", "counter", "Events that were more than could be kept."),
        Family("mainstem_login_failures_total", "counter", "Logins with a wrong name or password, by any protocol."),
        Family(
            "mainstem_drops_total",
            "counter",
            "Messages not delivered, and clients and messages not accepted, by reason (below).",
            ("protocol", "reason"),
        ),
    ),
    "Storage": (
        Family(
            "mainstem_append_seconds",
            "histogram",
            "One write of a log: sealing what a turn of the loop gathered for it, and handing it to the engine.",
        ),
        Family("mainstem_appended_records_total", "counter", "Records written to all logs."),
        Family(
            "mainstem_records_unstored_total", "counter", "Records of topics that are live only: delivered, not stored."
        ),
        Family("mainstem_records_overflowed_total", "counter", "Records that went to make room in full memory logs."),
        Family("mainstem_fsync_seconds", "histogram", "One sync of a log by group commit."),
        Family("mainstem_fsync_records", "histogram", "Group size: records that one sync made durable."),
        Family(
            "mainstem_ack_seconds",
            "histogram",
            "From the tick that wrote records until they were durable: acks leave then.",
        ),
        Family(
            "mainstem_deliver_seconds",
            "histogram",
            "From the tick that wrote records until its live subscribers had them in their sockets.",
        ),
        Family("mainstem_unsynced_records", "gauge", "Written, not yet durable."),
        Family("mainstem_unsynced_bytes", "gauge", "Written, not yet durable."),
        Family("mainstem_publishers_held", "gauge", "1 while publishers wait because too much is not durable yet."),
        Family("mainstem_logs", "gauge", "Logs.", ("engine",)),
        Family("mainstem_segments", "gauge", "Segments, or other parts kept as a whole.", ("engine", "tier")),
        Family("mainstem_storage_bytes", "gauge", "Bytes stored.", ("engine", "tier")),
        Family("mainstem_open_files", "gauge", "Segment files that are kept open."),
        Family(
            "mainstem_cache_requests_total",
            "counter",
            "Reads of segments that found, or did not find, what they need in memory: `page_cache` is the kernel's (the "
            "first page of each stretch that is read), `segment_index` where a sealed segment's frames lie, `tier` the "
            "local copy of what lies in the object store.",
            ("cache", "result"),
        ),
        Family(
            "mainstem_held_bytes",
            "gauge",
            "Kept past their time for those who still need them; as each kind of holder alone would keep it.",
            ("holder",),
        ),
        Family("mainstem_search_indexed_bytes_total", "counter", "Of sealed segments, read to index their words."),
        Family("mainstem_search_index_bytes_total", "counter", "Written for that."),
        Family("mainstem_disk_free_bytes", "gauge", "Free on the disk of the data directory."),
        Family("mainstem_space_low", "gauge", "1 while publishes are refused."),
        Family("mainstem_quotas_near", "gauge", "Quotas of namespaces and users of which 80 % or more are used."),
        Family(
            "mainstem_quota_used",
            "gauge",
            "Used of a quota; rates as of the last second.",
            QUOTA_LABELS,
            per_object=True,
        ),
        Family("mainstem_quota_limit", "gauge", "How much there may be used.", QUOTA_LABELS, per_object=True),
        Family(
            "mainstem_quota_delays_total",
            "counter",
            "Reads and writes that a quota delayed.",
            ("kind", "name"),
            per_object=True,
        ),
        Family("mainstem_quota_refusals_total", "counter", "What a quota refused.", ("kind", "name"), per_object=True),
        Family("mainstem_log_bytes", "gauge", "Bytes of each log.", ("log", "engine"), per_object=True),
        Family("mainstem_log_segments", "gauge", "Segments of each log.", ("log", "engine"), per_object=True),
        Family(
            "mainstem_log_stable_offset", "gauge", "The durable end of each log.", ("log", "engine"), per_object=True
        ),
    ),
    "Object storage": (
        Family("mainstem_tier_objects", "gauge", "Objects of this broker in the store.", ("state",)),
        Family("mainstem_tier_object_bytes", "gauge", "Their bytes.", ("state",)),
        Family("mainstem_tier_requests_total", "counter", "Requests to the store.", ("verb",)),
        Family("mainstem_tier_failures_total", "counter", "Of these, the ones that did not succeed.", ("verb",)),
        Family("mainstem_tier_request_seconds", "summary", "How long they took.", ("verb",)),
        Family("mainstem_tier_bytes_total", "counter", "Bytes uploaded (out) and downloaded (in).", ("direction",)),
        Family("mainstem_tier_backlog_bytes", "gauge", "Sealed and not in the store yet."),
        Family("mainstem_tier_lag_seconds", "gauge", "Since the oldest record of these was written."),
        Family(
            "mainstem_tier_unstored_bytes", "gauge", "Engine `object`: published and not in the store yet, in memory."
        ),
        Family("mainstem_tier_unstored_seconds", "gauge", "How long the oldest of these waits."),
        Family("mainstem_tier_fault", "gauge", "1 while the store takes nothing and uploads are tried again."),
        Family(
            "mainstem_tier_damaged_objects",
            "gauge",
            "Objects that were damaged or missing when they were last asked for: their offsets cannot be read.",
        ),
        Family("mainstem_tier_cache_bytes", "gauge", "Local disk that the cache uses."),
        Family(
            "mainstem_tier_cost_month",
            "gauge",
            "What a month costs at the prices of `[tier]`: what is stored now, requests as often as since the start.",
        ),
    ),
    "Cluster": (
        Family("mainstem_cluster_epoch", "gauge", "The epoch in which this broker owns its cell."),
        Family("mainstem_cluster_brokers", "gauge", "Brokers of the cluster.", ("state",)),
        Family("mainstem_cluster_cells", "gauge", "Cells of the cluster.", ("state",)),
        Family("mainstem_cluster_commits_total", "counter", "Rounds committed to PostgreSQL."),
        Family("mainstem_cluster_commit_seconds", "histogram", "How long each took, tries included."),
        Family("mainstem_cluster_pending_bytes", "gauge", "Changes on their way to PostgreSQL."),
        Family("mainstem_cluster_unflushed_bytes", "gauge", "Changes in PostgreSQL that no image holds yet."),
        Family("mainstem_cluster_images_total", "counter", "Images stored."),
        Family(
            "mainstem_cluster_postgres_away_seconds", "gauge", "For how long PostgreSQL has not answered; 0: it does."
        ),
        Family("mainstem_cluster_relayed_clients", "gauge", "Clients here that another broker serves."),
    ),
    "Consumers": (
        Family("mainstem_topics", "gauge", "Topics."),
        Family("mainstem_views", "gauge", "Views."),
        Family("mainstem_groups", "gauge", "Kafka consumer groups."),
        Family("mainstem_sessions", "gauge", "Persistent MQTT sessions."),
        Family("mainstem_retained_messages", "gauge", "Retained MQTT messages."),
        Family("mainstem_queues", "gauge", "Queues."),
        Family("mainstem_queue_ready_messages", "gauge", "Ready in all queues."),
        Family("mainstem_queue_unacked_messages", "gauge", "Delivered and not settled, in all queues."),
        Family("mainstem_queue_dead_messages", "gauge", "Dead letters kept by queues without a dead-letter exchange."),
        Family(
            "mainstem_each_queue_messages",
            "gauge",
            "Of one queue: ready, unacked, dead.",
            ("namespace", "queue", "state"),
            per_object=True,
        ),
        Family(
            "mainstem_cursor_lag_messages",
            "gauge",
            "Records a cursor has not read or settled.",
            ("namespace", "protocol", "cursor", "kind"),
            per_object=True,
        ),
        Family(
            "mainstem_cursor_held_bytes",
            "gauge",
            "Bytes kept past their time because this cursor needs them.",
            ("namespace", "protocol", "cursor", "kind"),
            per_object=True,
        ),
    ),
    "Pipelines": (
        Family("mainstem_pipeline_flows", "gauge", "Flows of pipelines that reported.", ("state",)),
        Family("mainstem_pipeline_lag_messages", "gauge", "Records that flows have not read, of all that run."),
        Family("mainstem_flow_lag_messages", "gauge", "Records a flow has not read.", FLOW, per_object=True),
        Family("mainstem_flow_up", "gauge", "1 while the flow runs.", FLOW, per_object=True),
        Family("mainstem_flow_rows_total", "counter", "Rows a flow has read, in its run.", FLOW, per_object=True),
        Family(
            "mainstem_flow_dead_letters_total", "counter", "Rows it could not use, in its run.", FLOW, per_object=True
        ),
        Family("mainstem_flow_restarts_total", "counter", "How often it was started again.", FLOW, per_object=True),
        Family("mainstem_flow_batch_seconds", "gauge", "How long its last batch took.", FLOW, per_object=True),
        Family("mainstem_flow_batch_end_seconds", "gauge", "When its last batch ended.", FLOW, per_object=True),
    ),
}

BY_NAME = {family.name: family for section in FAMILIES.values() for family in section}

DROP_REASONS = {
    "slow_consumer": "a live message of QoS 0 found no room in its subscriber's buffer",
    "connection_limit": "a client was turned away: too many connections, or no permission to connect",
    "session_expired": "a persistent MQTT session was away longer than it asked for and is forgotten",
    "session_hold_ended": "an absent session held back more than it may: retention no longer waits for it",
    "retained_limit": "a message could not become the retained one of its topic: there are too many",
    "undecodable": "a batch that a Kafka client made cannot be read; it is stored, but not delivered live",
    "no_space": "a publish was refused: the disk is nearly full",
    "expired": "a message waited in a queue longer than its time to live",
    "maxlen": "a queue was longer than it may be; its oldest message left",
    "rejected": "a consumer rejected a message of a transient queue",
    "delivery_limit": "a message of a transient queue was delivered as often as it may be",
}

TASKS = ("compaction", "retention", "sync", "tier", "times", "topic index", "snapshot")
FLOW_STATES = ("starting", "waiting", "running", "restarting", "silent", "stopped", "failed", "done")
HOLDERS = ("queues", "sessions", "retained", "delayed", "archives")
