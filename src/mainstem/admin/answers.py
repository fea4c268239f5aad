"""What the rows of the API's lists have, for the OpenAPI document. A test compares them with what a broker answers.

One thing in full has these fields and more.
"""

from __future__ import annotations

from mainstem.admin.calls import Field

NAME = Field("name", "string", "Its name.", required=True)
COUNTS = (
    Field("lag", "integer", "Records it has not read yet.", required=True),
    Field("unacked", "integer", "Delivered, and not acknowledged.", required=True),
)

ROWS: dict[str, tuple[str, tuple[Field, ...]]] = {
    "topics": (
        "Topic",
        (
            NAME,
            Field("layout", "string", "shared or dedicated.", required=True),
            Field("engine", "string", "Where its bytes rest.", required=True),
            Field("partitions", "integer", "How many it has.", required=True),
            Field("records", "integer", "That are stored.", required=True),
            Field("start_offset", "integer", "The lowest of its partitions.", required=True),
            Field("end_offset", "integer", "The highest of its partitions.", required=True),
            Field("declared", "boolean", "Whether it has settings of its own.", required=True),
        ),
    ),
    "queues": (
        "Queue",
        (
            NAME,
            Field("kind", "string", "classic, quorum, stream or jetstream.", required=True),
            Field("durable", "boolean", "Whether it outlives the broker.", required=True),
            Field("ready", "integer", "Messages that wait.", required=True),
            Field("unacked", "integer", "Delivered, and not acknowledged.", required=True),
            Field("dead", "integer", "Dead letters that it keeps.", required=True),
            Field("consumers", "integer", "Of all protocols.", required=True),
            Field("filters", "array", "Which topics enter it.", required=True),
        ),
    ),
    "views": (
        "View",
        (
            NAME,
            Field("filter", "string", "Which topics it shows.", required=True),
            Field("where", "string", "A condition on key and headers.", required=True),
            Field("grants", "boolean", "Whether a right on it suffices to read it.", required=True),
            Field("slots", "integer", "Logs that it reads.", required=True),
        ),
    ),
    "streams": (
        "Stream",
        (
            NAME,
            Field("subjects", "array", "What it captures, as NATS spells it.", required=True),
            Field("storage", "string", "file or memory.", required=True),
            Field("retention", "string", "limits, interest or workqueue.", required=True),
            Field("durability", "string", "When a publish is acked: sync, interval:<ms>, os or none.", required=True),
            Field("messages", "integer", "That it holds.", required=True),
            Field("bytes", "integer", "That it holds, as JetStream counts them.", required=True),
            Field("consumers", "integer", "That it has.", required=True),
        ),
    ),
    "groups": (
        "Group",
        (
            NAME,
            Field("protocol", "string", "kafka.", required=True),
            Field("kind", "string", "Of which of Kafka's protocols.", required=True),
            Field("reads", "string", "Its topics.", required=True),
            *COUNTS,
            Field("state", "string", "As Kafka calls it.", required=True),
            Field("members", "integer", "How many consume now.", required=True),
        ),
    ),
    "cursors": (
        "Cursor",
        (
            NAME,
            Field("protocol", "string", "Of whose clients.", required=True),
            Field("kind", "string", "A group, a queue or a session.", required=True),
            Field("reads", "string", "Topics or filters.", required=True),
            *COUNTS,
            Field("state", "string", "Whether somebody consumes.", required=True),
            Field("held_bytes", "integer", "Kept past its time only for it."),
            Field("members", "integer", "Of a group: how many consume now."),
            Field("user", "any", "Of a session: whose it is; null where nobody logs in."),
        ),
    ),
    "connections": (
        "Connection",
        (
            Field("id", "string", "Its listener and a number.", required=True),
            Field("protocol", "string", "Of the client.", required=True),
            Field("client", "string", "What the client calls itself.", required=True),
            Field("user", "string", "Empty where nobody logs in.", required=True),
            Field("namespace", "string", "Of the login.", required=True),
            Field("address", "string", "Where it comes from.", required=True),
            Field("connected_s", "integer", "Since so many seconds.", required=True),
            Field("unsent_bytes", "integer", "That the client left unread.", required=True),
            Field("state", "string", "open, held or closing.", required=True),
        ),
    ),
    "namespaces": (
        "Namespace",
        (
            NAME,
            Field("topics", "integer", "How many it has."),
            Field("views", "integer", "How many it has."),
            Field("queues", "integer", "How many it has."),
            Field("users", "integer", "That belong to it."),
            Field("connections", "integer", "Of its clients."),
            Field("stored_bytes", "integer", "On disk."),
        ),
    ),
    "users": (
        "User",
        (
            NAME,
            Field("namespace", "string", "Where it is without a choice.", required=True),
            Field("also", "array", "Other namespaces it may choose.", required=True),
            Field("admin", "boolean", "Whether it may do everything.", required=True),
            Field("rules", "array", "Of its own.", required=True),
            Field("roles", "array", "Whose rules it has too.", required=True),
            Field("nkey", "string", "Its NATS key.", required=True),
            Field("quota", "object", "Its limits by name.", required=True),
        ),
    ),
}
