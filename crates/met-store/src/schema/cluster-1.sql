-- Of a server alone: its nodes, and what they sent as they sent it.
CREATE TABLE node (
    name            TEXT PRIMARY KEY,
    enrolled_ns     INTEGER NOT NULL,
    seen_ns         INTEGER,
    version         TEXT,
    boot_id         TEXT,
    cpus            INTEGER,
    memory_bytes    INTEGER,
    clock_offset_ns INTEGER,
    dropped_samples INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Who holds a token; what is kept of it proves it and cannot be used in its place.
CREATE TABLE access (
    hash    BLOB PRIMARY KEY,
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    made_ns INTEGER NOT NULL
) WITHOUT ROWID;

-- The last batch of each spool that a node has had.
CREATE TABLE spool (
    node     TEXT NOT NULL,
    id       TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (node, id)
) WITHOUT ROWID;

-- Batches whose series have not been moved to the store yet, as they came.
CREATE TABLE batch (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    node        TEXT NOT NULL,
    received_ns INTEGER NOT NULL,
    data        BLOB NOT NULL
);
CREATE INDEX batch_of_node ON batch (node, number);

-- What each node tells of a job; `whole` is the incarnation of the job that it is a part of.
CREATE TABLE told (
    manager     TEXT NOT NULL,
    id          TEXT NOT NULL,
    node        TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    whole       INTEGER NOT NULL,
    record      TEXT NOT NULL,
    PRIMARY KEY (manager, id, node, incarnation)
) WITHOUT ROWID;

CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
