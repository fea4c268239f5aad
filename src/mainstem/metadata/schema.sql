-- The metadata schema, version 1. SQLite runs it as it stands; PostgreSQL with BLOB read as BYTEA.
-- Names of topics and filters are canonical bytes; documents are JSON text; stamps are nanoseconds.

CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version (version) VALUES (1);

-- One row per kind of id; `reserved` is the first id that was never handed out, so that none is used twice.
CREATE TABLE sequences (kind TEXT PRIMARY KEY, reserved BIGINT NOT NULL);

CREATE TABLE namespaces (name TEXT PRIMARY KEY, created BIGINT NOT NULL, options TEXT NOT NULL);

-- Topics with a policy of their own. Topics of a stem are not rows: the log itself names them.
CREATE TABLE topics (
    id          BIGINT PRIMARY KEY,
    namespace   TEXT NOT NULL,
    name        BLOB NOT NULL,
    kafka_alias TEXT,
    layout      TEXT NOT NULL,
    partitions  INTEGER NOT NULL,
    config      TEXT NOT NULL,
    created     BIGINT NOT NULL,
    UNIQUE (namespace, name)
);

CREATE TABLE logs (
    id        BIGINT PRIMARY KEY,
    namespace TEXT NOT NULL,
    kind      TEXT NOT NULL,       -- stem | partition
    engine    TEXT NOT NULL,
    policy    TEXT NOT NULL
);

-- A topic-partition is its spans in order of seq; the last one is open (end_offset NULL).
CREATE TABLE spans (
    topic_id     BIGINT NOT NULL,
    "partition"  INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    log_id       BIGINT NOT NULL,
    first_offset BIGINT NOT NULL,
    end_offset   BIGINT,
    PRIMARY KEY (topic_id, "partition", seq)
);

CREATE TABLE views (
    id        BIGINT PRIMARY KEY,
    namespace TEXT NOT NULL,
    name      BLOB NOT NULL,
    filter    BLOB NOT NULL,
    condition TEXT NOT NULL,       -- the --where text, empty for none
    options   TEXT NOT NULL,
    created   BIGINT NOT NULL,
    UNIQUE (namespace, name)
);

-- A view's Kafka partitions are permanent: a slot is never renumbered, and empty (log_id NULL) once its log is gone.
CREATE TABLE view_slots (view_id BIGINT NOT NULL, slot INTEGER NOT NULL, log_id BIGINT, PRIMARY KEY (view_id, slot));

-- Declarations that only their owner reads: policies, users, acls, exchanges, queues, bindings.
CREATE TABLE items (
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
);

CREATE TABLE kv ("key" TEXT PRIMARY KEY, value BLOB NOT NULL);
