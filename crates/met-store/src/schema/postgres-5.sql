-- As schema/catalogue-5.sql.
CREATE TABLE listed (
    job             BIGINT PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    sort_ns         BIGINT NOT NULL,
    id_number       BIGINT NOT NULL,
    incarnation     BIGINT NOT NULL,
    uid             BIGINT,
    start_ns        BIGINT,
    end_ns          BIGINT,
    duration_ns     BIGINT,
    nodes           BIGINT,
    cpu             BIGINT,
    cores           BIGINT,
    efficiency      BIGINT,
    memory          BIGINT,
    memory_peak     BIGINT,
    read            BIGINT,
    written         BIGINT,
    gpus            BIGINT,
    gpu_utilization BIGINT,
    energy          BIGINT,
    emissions       BIGINT,
    is_inside       BIGINT NOT NULL,
    has_cards       BIGINT NOT NULL,
    state           TEXT NOT NULL,
    manager         TEXT NOT NULL,
    id              TEXT NOT NULL,
    cluster         TEXT NOT NULL,
    name            TEXT NOT NULL,
    "user"          TEXT,
    account         TEXT,
    partition       TEXT,
    tags            TEXT NOT NULL,
    pids            TEXT NOT NULL,
    node_names      TEXT NOT NULL,
    command         TEXT NOT NULL
);

CREATE TABLE listed_node (
    job       BIGINT NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    node      TEXT,
    energy    BIGINT,
    emissions BIGINT,
    cpu       BIGINT
);

CREATE INDEX listed_node_by_job ON listed_node (job);
