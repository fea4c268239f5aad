"""The error catalogue behind `mainstem explain CODE`: what it means and what to do. A test holds it complete."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    title: str
    text: str


def explanation(code: str) -> Explanation | None:
    return CATALOGUE.get(code.upper() if code.upper().startswith("MS-") else f"MS-{code}")


CATALOGUE = {
    "MS-0000": Explanation(
        "Something failed that has no code of its own",
        "The message says what is known. If it reads like a mistake of ours, run the command again with -vv and\n"
        "report it.",
    ),
    "MS-1000": Explanation(
        "The request cannot be done",
        "The client asked for something the broker cannot do; the message says what and why.",
    ),
    "MS-1001": Explanation(
        "Not found",
        "A topic, view, queue, group, connection or log of that name does not exist (any more). List what there\n"
        "is: mainstem topic ls, mainstem view ls, mainstem queue ls, mainstem group ls. Names are case-sensitive.\n"
        "A topic has one spelling per protocol: mainstem topic describe shows all of them.",
    ),
    "MS-1002": Explanation(
        "The name is taken",
        "Topics and views share one registry of names, and two different topics may not have the same spelling in\n"
        "any protocol: names are refused, never merged. Choose another name, or look at what has it: mainstem\n"
        "topic describe NAME, mainstem view describe NAME.",
    ),
    "MS-1003": Explanation(
        "That cannot be a name",
        "A topic name must be UTF-8 without NUL, without the wildcards + and # as characters of a level, at most\n"
        "limits.topic_bytes_max bytes and limits.topic_levels_max levels. A filter may use + for one level and #\n"
        "for any number of them (also in the middle); AMQP spells them * and #.",
    ),
    "MS-1004": Explanation(
        "That value makes no sense here",
        "A setting or argument was understood but is refused: out of range, unknown, or at odds with another one.\n"
        "The message names it. Topic settings and their values: docs/configuration.md.",
    ),
    "MS-1005": Explanation(
        "Not allowed",
        "The user has no rule that allows this action on this topic, or a rule that denies it (deny wins). See the\n"
        "rules: mainstem user describe NAME. Allow it: mainstem user allow NAME ACTION FILTER.",
    ),
    "MS-1006": Explanation(
        "Offset out of range",
        "The offset asked for lies before the first record still kept, or beyond the end of the log. Records go\n"
        "when retention removes them. Start again from --from earliest or --from latest, or reset the group:\n"
        "mainstem group reset GROUP TOPIC --to earliest.",
    ),
    "MS-1007": Explanation(
        "The message is too large",
        "Each topic has a limit for one record, 16 MiB unless set otherwise. Raise it for a topic with mainstem\n"
        "topic alter TOPIC --set message_bytes_max=32MiB, or for all with [topics] message_bytes_max.",
    ),
    "MS-1008": Explanation(
        "Changed by someone else meanwhile",
        "The change was prepared on what the metadata said, and another broker or command changed that first. Nothing\n"
        "was changed. Look at what it says now, then try again.",
    ),
    "MS-1009": Explanation(
        "The schema registry refuses it",
        "The message is the one that clients of Confluent's registry know: a subject or version that is not there, a\n"
        "schema that cannot be read, or one that earlier data would not fit. See the versions: mainstem schema\n"
        "describe SUBJECT. Levels of compatibility and what each allows: docs/schemas.md.",
    ),
    "MS-1010": Explanation(
        "The value does not match the topic's schema",
        "The topic's policy names a schema (topic describe TOPIC), and this value does not match it; the message says\n"
        "where. Correct the value, register a version that accepts it (mainstem schema add SUBJECT FILE), or have such\n"
        "values set aside: mainstem topic alter TOPIC --set schema_mode=dead-letter.",
    ),
    "MS-1011": Explanation(
        "The topic is live only",
        "Its policy says store = false (topic describe TOPIC): what is published goes to who listens now, and is kept\n"
        "nowhere. NATS core, MQTT QoS 0 without retain and AMQP transient messages without a queue can do with that.\n"
        "Kafka, HTTP, QoS 1 and 2, retained and persistent messages, queues, streams and views cannot. Publish to another\n"
        "topic, or have this one stored: mainstem topic alter TOPIC --store true.",
    ),
    "MS-2000": Explanation(
        "The peer broke the protocol",
        "Bytes arrived that the protocol does not allow; the connection is closed. Most often a client talks to\n"
        "the wrong port (HTTP to Kafka's, TLS to a plain one) or sends a packet larger than the limits allow.",
    ),
    "MS-3000": Explanation(
        "Too busy",
        "A bounded resource is full: connections, memory for unsynced data, queued work. Nothing was lost; try\n"
        "again. What is full is in the message and in /metrics; limits are in [limits].",
    ),
    "MS-3001": Explanation(
        "The disk is full",
        "Free space fell under data.space_low_bytes: publishes are refused so that reads, acks and recovery still\n"
        "work. Free space, lower a topic's retention (mainstem topic alter TOPIC --set retention_ms=1d), or see\n"
        "who holds data: mainstem cursor ls --sort held.",
    ),
    "MS-3002": Explanation(
        "The object store does not answer",
        "Old parts of a log lie in an object store ([tier] store) that is slow, throttles or cannot be reached. What is\n"
        "local is served, publishes go on, uploads wait and are tried again without end. mainstem doctor looks at it.",
    ),
    "MS-3003": Explanation(
        "A quota is used up",
        "The namespace or the user has as many connections, topics, queues or stored bytes as it may have, or publishes\n"
        "faster than it may. See what is used and what is left: mainstem namespace describe NAME, mainstem user\n"
        "describe NAME. Change it: mainstem namespace alter NAME --quota topics_max=1000.",
    ),
    "MS-4000": Explanation(
        "The configuration or the data directory does not allow this",
        "The message says what and where.",
    ),
    "MS-4001": Explanation(
        "Unknown key in the configuration",
        "A key that nobody reads would be a promise not kept, so it is an error. The suggestion is the nearest\n"
        "known key. All keys with their meaning: docs/configuration.md, or mainstem config show.",
    ),
    "MS-4002": Explanation(
        "A value in the configuration is not of its kind",
        "Durations: 500ms, 30s, 5m, 12h, 7d or milliseconds. Sizes: 512KiB, 64MiB, 10GB or bytes. Texts are quoted\n"
        "in TOML.",
    ),
    "MS-4003": Explanation(
        "The configuration file is not TOML",
        "Line and column are in the message; https://toml.io is the syntax.",
    ),
    "MS-4004": Explanation(
        "The configuration file cannot be read",
        "It is not there, or not readable by this user: --config FILE names it.",
    ),
    "MS-4005": Explanation(
        "A port is taken",
        "Another process listens on Mainstem's port. `mainstem up` moves to a free port and says so;\n"
        "`mainstem serve` does not guess. Stop the other one, choose another port (--mqtt-port N), or switch the\n"
        "listener off (--set listeners.mqtt_port=off).",
    ),
    "MS-4006": Explanation(
        "Listening beyond this machine without a login",
        "Until a user exists anyone who can connect may do anything, so Mainstem only listens on loopback. Make a\n"
        "user: mainstem user add NAME --data DIR; or accept the risk on a network you trust:\n"
        "--insecure-allow-anonymous.",
    ),
    "MS-4007": Explanation(
        "The data was written by a newer Mainstem",
        "Formats are only ever read by the version that wrote them or a later one. Start the newer Mainstem, or\n"
        "restore a backup made before the upgrade.",
    ),
    "MS-4008": Explanation(
        "The data directory is in use",
        "One process owns a data directory; its lock file names it. Stop that process, or use another directory\n"
        "(--data DIR).",
    ),
    "MS-4009": Explanation(
        "The directory belongs to something else",
        "A data directory must be empty or made by Mainstem, and must not be open to other users (mode 0700). Give\n"
        "an empty directory with --data DIR, or fix its mode: chmod 700 DIR.",
    ),
    "MS-4010": Explanation(
        "The certificate for TLS cannot be used",
        "[tls] certificate and key name PEM files that this user can read: the certificate (then those that vouch for\n"
        "it), and its private key without a password. Look at them: openssl x509 -in CERTIFICATE -text -noout;\n"
        "openssl pkey -in KEY -check -noout. On SIGHUP a bad file changes nothing: the old certificate stays in use.",
    ),
    "MS-5000": Explanation(
        "The disk did not keep a promise",
        "A read or write failed in a way that must not be papered over. After a failed fsync the process ends at\n"
        "once: what the kernel did with the data is unknown. Check the disk (dmesg, smartctl), then start again;\n"
        "recovery runs first.",
    ),
    "MS-5001": Explanation(
        "Bytes that do not validate",
        "A stored frame failed its checksum. At the very end of a log after a crash this is a torn write: recovery\n"
        "cuts it, keeps it aside and goes on. Anywhere else see MS-5002.",
    ),
    "MS-5002": Explanation(
        "Acked data is damaged",
        "A frame before the durable point does not validate, so the log is not served: silently leaving it out\n"
        "would be a lie. Restore a backup (mainstem restore), or give the damaged records up knowingly: mainstem\n"
        "log repair DIR --quarantine, which keeps the bytes aside and marks the lost offsets.",
    ),
    "MS-5003": Explanation(
        "A batch that its client made unreadable",
        "The checksum fits, so these are the bytes a Kafka client sent, but their records cannot be read (a broken\n"
        "compression, or counts and sizes that do not fit). Archives keep such a batch whole, as one row with flags -1.\n"
        "Spark reads stop at it; option failOnDataLoss=false passes it over.",
    ),
    "MS-5004": Explanation(
        "An object is missing",
        "The registry names an object that is not in the store: someone deleted it, or a lifecycle rule did. Its offsets\n"
        "cannot be read, all others can. Put it back from a version or a copy of the bucket; the message names it.",
    ),
    "MS-5010": Explanation(
        "Another broker owns the cell",
        "This broker was paused or cut off for longer than its lease, and another took over. It acknowledged nothing since\n"
        "and starts over by itself. Often: pauses of the machine, or a slow way to PostgreSQL. See mainstem cluster status.",
    ),
    "MS-6001": Explanation(
        "No broker answers",
        "Nothing listens at that address. Start one: mainstem up. Another address: --url http://HOST:PORT or\n"
        "MAINSTEM_URL.",
    ),
    "MS-6002": Explanation(
        "The answer is not from Mainstem",
        "Something else answered at that address and port. Check --url, or which process has the port: mainstem\n"
        "doctor.",
    ),
    "MS-6004": Explanation(
        "The broker said no",
        "A client of the command line was connected, and its request was refused in the protocol's own words, which the\n"
        "message repeats. The broker's log has the details.",
    ),
    "MS-6005": Explanation(
        "The operating system said no",
        "A file or directory that the command reads or writes, or its own output, could not be used: the message names it\n"
        "and the reason (no space, no permission, not there).",
    ),
    "MS-6003": Explanation(
        "An extra is not installed",
        "Pipelines, SQL and lake tables need Spark: pip install 'mainstem[pipeline]', and Java 17 or later\n"
        "(Debian: apt install openjdk-17-jre-headless). mainstem doctor checks both. mainstem bench needs Linux.\n"
        "A checkout needs its compiled modules: apt install gcc python3-dev, then make setup; or install a wheel.",
    ),
    "MS-7001": Explanation(
        "A pipeline file has problems",
        "Each is reported with its line; nothing was run. Check again: mainstem pipeline validate FILE.",
    ),
    "MS-7002": Explanation(
        "Records were gone before they were read",
        "Retention (or a deletion) removed records that a Spark job had not read yet. Keep records longer, or let\n"
        "the job go on without them: option failOnDataLoss=false.",
    ),
    "MS-7003": Explanation(
        "Another run has taken over",
        "A newer run of the same query or archive committed meanwhile; this one must not write any more. Only one\n"
        "run of a pipeline or archive may be active.",
    ),
    "MS-7004": Explanation(
        "A flow changed in a way its state does not allow",
        "What a flow has done so far is kept in the pipeline's state directory; the change does not match it. Give\n"
        "the flow a new name, or reset it knowingly: mainstem pipeline reset FILE FLOW.",
    ),
    "MS-7005": Explanation(
        "Too many records could not be used",
        "More records of a batch than allowed failed the flow's checks. They are in the dead letters the flow\n"
        "names; the message says how many and the first reason.",
    ),
    "MS-7006": Explanation(
        "A sink did not take a batch",
        "The batch is tried again from the same offsets; nothing is lost or doubled. The message repeats what the\n"
        "sink said.",
    ),
    "MS-7007": Explanation(
        "A flow failed",
        "Its SQL, its Python or its data made Spark stop; the message repeats the reason. mainstem pipeline\n"
        "validate FILE finds what can be found beforehand.",
    ),
    "MS-7008": Explanation(
        "A lake table holds what cannot be read here",
        "Another engine wrote delete files, data files or defaults of columns of a kind that is not understood; reading\n"
        "on would bring deleted rows back or show wrong values. The message names what to do with that engine.",
    ),
    "MS-7009": Explanation(
        "A row that no topic takes",
        "The topic it names is none (a wildcard, null, too long, a view), or it is too large for it. In a pipeline such\n"
        "rows are dead letters; in a job of your own filter them out.",
    ),
    "MS-8001": Explanation(
        "A statement needs more memory than it may have",
        "mainstem query keeps within --memory; sorting and grouping spill to disk, single values cannot. Give it more,\n"
        "ask for less, or let Spark do it: mainstem sql.",
    ),
    "MS-8002": Explanation(
        "A question was stopped",
        "Whoever asked went away or stopped it, or it took longer than it may. Ask for less: a shorter time, fewer topics.",
    ),
}
