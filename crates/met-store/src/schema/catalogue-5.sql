-- What lists filter, sort and sum by: a narrow row for each job, computed from its record (`listed.rs`). A list by any
-- column reads all of these; a row of `job` holds the whole record. The texts that may be long are at the end.
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
    command         TEXT NOT NULL
) STRICT;

-- What a job of several nodes used on each; a job of one node used all there. NULL where that is not known.
CREATE TABLE listed_node (
    job       INTEGER NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    node      TEXT,
    energy    INTEGER,
    emissions INTEGER,
    cpu       INTEGER
) STRICT;

CREATE INDEX listed_node_by_job ON listed_node (job);
