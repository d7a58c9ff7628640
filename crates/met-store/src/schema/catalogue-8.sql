-- Two more values that lists are sorted by. All rows are written again, piece by piece (`listed.rs`): with
-- foreign keys SQLite would delete them one by one.
DROP TABLE listed;
CREATE TABLE listed (
    job             INTEGER PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    sort_ns         INTEGER NOT NULL,
    id_number       INTEGER NOT NULL,
    incarnation     INTEGER NOT NULL,
    uid             INTEGER,
    start_ns        INTEGER,
    end_ns          INTEGER,
    duration_ns     INTEGER,           -- NULL while it runs
    nodes           INTEGER,           -- how many
    cpu             INTEGER,
    cores           INTEGER,           -- millionths, as all ratios here
    efficiency      INTEGER,
    memory          INTEGER,
    memory_peak     INTEGER,
    read            INTEGER,
    written         INTEGER,
    gpus            INTEGER,
    gpu_utilization INTEGER,
    energy          INTEGER,
    emissions       INTEGER,
    is_inside       INTEGER NOT NULL,  -- of another job, which includes it
    has_cards       INTEGER NOT NULL,
    state           TEXT NOT NULL,
    manager         TEXT NOT NULL,
    id              TEXT NOT NULL,
    cluster         TEXT NOT NULL,
    name            TEXT NOT NULL,
    user            TEXT,
    account         TEXT,
    partition       TEXT,
    tags            TEXT NOT NULL,     -- each between spaces, as pids
    pids            TEXT NOT NULL,
    node_names      TEXT NOT NULL,     -- each between line feeds
    command         TEXT NOT NULL,
    submit_ns       INTEGER,
    exit_status     INTEGER
) STRICT;
DELETE FROM meta WHERE name IN ('listed', 'listed_to');

-- The records of jobs that are over for those who look at many (`brief.rs`): without processes and marked work, packed
-- together with their figures. Computed from `job`, `total` and `summary`; a row of another format is not read.
CREATE TABLE brief (
    job    INTEGER PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    format INTEGER NOT NULL,
    sum    INTEGER NOT NULL,         -- checksum of the rest
    data   BLOB NOT NULL
) STRICT;
