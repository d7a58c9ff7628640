-- The catalogue as SQLite has it in version 3, of which the comments are in schema/catalogue-*.sql.
CREATE TABLE store_version (
    version BIGINT NOT NULL
);
INSERT INTO store_version VALUES (0);

CREATE TABLE job (
    key         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster     TEXT NOT NULL,
    manager     TEXT NOT NULL,
    id          TEXT NOT NULL,
    incarnation BIGINT NOT NULL,
    id_number   BIGINT NOT NULL,
    name        TEXT NOT NULL,
    "user"      TEXT,
    uid         BIGINT,
    account     TEXT,
    state       TEXT NOT NULL,
    start_ns    BIGINT,
    end_ns      BIGINT,
    sort_ns     BIGINT NOT NULL,
    -- Text and not JSON: the record comes back as it was, whatever characters are in it.
    detail      TEXT NOT NULL,
    alias       TEXT,
    changed     BIGINT NOT NULL UNIQUE,
    UNIQUE (id, manager, incarnation, cluster)
);

CREATE INDEX job_by_start ON job (sort_ns DESC, id_number DESC, state, uid, "user", manager);
CREATE INDEX job_unfinished ON job (sort_ns DESC, id_number DESC, state) WHERE state <> 'finished';
CREATE INDEX job_by_name ON job (name, sort_ns DESC, id_number DESC);
CREATE INDEX job_local ON job (id_number) WHERE manager = 'local';
CREATE INDEX job_by_alias ON job (alias) WHERE alias IS NOT NULL;

-- Its one row is held by whoever writes, until he is done: changes are seen in the order of their numbers.
CREATE TABLE change (
    last BIGINT NOT NULL
);
INSERT INTO change VALUES (0);

CREATE TABLE term (
    key  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
);

CREATE TABLE total (
    job    BIGINT NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    metric BIGINT NOT NULL REFERENCES term (key),
    value  BIGINT NOT NULL,
    kind   BIGINT NOT NULL REFERENCES term (key),
    source BIGINT NOT NULL REFERENCES term (key),
    PRIMARY KEY (job, metric)
);

CREATE TABLE summary (
    job    BIGINT NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    metric BIGINT NOT NULL REFERENCES term (key),
    mean   DOUBLE PRECISION NOT NULL,
    min    DOUBLE PRECISION NOT NULL,
    max    DOUBLE PRECISION NOT NULL,
    p50    DOUBLE PRECISION,
    p95    DOUBLE PRECISION,
    PRIMARY KEY (job, metric)
);

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE device (
    key       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uuid      TEXT NOT NULL UNIQUE,
    name      TEXT NOT NULL,
    vendor    TEXT NOT NULL,
    idle_mw   BIGINT,
    lowest_mw BIGINT
);

CREATE TABLE allocation (
    job      BIGINT NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    device   BIGINT NOT NULL REFERENCES device (key) ON DELETE CASCADE,
    begin_ns BIGINT NOT NULL,
    end_ns   BIGINT,
    held_by  TEXT NOT NULL,
    PRIMARY KEY (job, device)
);

CREATE INDEX allocation_by_device ON allocation (device, begin_ns);

CREATE TABLE factor (
    since_ns   BIGINT PRIMARY KEY,
    mg_per_kwh BIGINT NOT NULL,
    source     TEXT NOT NULL
);
