-- A job. The columns are what lists filter and sort by; `detail` is the whole record but totals and summaries.
CREATE TABLE job (
    key         INTEGER PRIMARY KEY,
    cluster     TEXT NOT NULL,     -- '' for none: NULLs would not be equal to each other
    manager     TEXT NOT NULL,
    id          TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    id_number   INTEGER NOT NULL,  -- the leading digits of id, for sorting
    name        TEXT NOT NULL,
    user        TEXT,
    uid         INTEGER,
    account     TEXT,
    state       TEXT NOT NULL,
    start_ns    INTEGER,
    end_ns      INTEGER,
    sort_ns     INTEGER NOT NULL,  -- the start, or the far future for a job that has none yet
    detail      TEXT NOT NULL,     -- JSON
    UNIQUE (id, manager, incarnation, cluster)
) STRICT;

-- Wide, so that a filter that few jobs pass reads the index only.
CREATE INDEX job_by_start ON job (sort_ns DESC, id_number DESC, state, uid, user, manager);
-- The few that live or went wrong, which are asked for most.
CREATE INDEX job_unfinished ON job (sort_ns DESC, id_number DESC, state) WHERE state <> 'finished';
CREATE INDEX job_by_name ON job (name, sort_ns DESC, id_number DESC);
CREATE INDEX job_local ON job (id_number) WHERE manager = 'local';

-- Names of metrics, kinds and sources: a few dozen, said millions of times.
CREATE TABLE term (
    key  INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE total (
    job    INTEGER NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    metric INTEGER NOT NULL REFERENCES term (key),
    value  INTEGER NOT NULL,
    kind   INTEGER NOT NULL REFERENCES term (key),
    source INTEGER NOT NULL REFERENCES term (key),
    PRIMARY KEY (job, metric)
) STRICT, WITHOUT ROWID;

CREATE TABLE summary (
    job    INTEGER NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    metric INTEGER NOT NULL REFERENCES term (key),
    mean   REAL NOT NULL,
    min    REAL NOT NULL,
    max    REAL NOT NULL,
    p50    REAL,
    p95    REAL,
    PRIMARY KEY (job, metric)
) STRICT, WITHOUT ROWID;
