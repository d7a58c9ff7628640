-- What was done about findings (`reactions.rs`): acknowledged, muted, sent. It outlives the jobs.
CREATE TABLE reaction (
    owner    TEXT NOT NULL,           -- whose jobs
    lineage  TEXT NOT NULL,           -- empty for the sum of a user's jobs
    rule     TEXT NOT NULL,
    kind     TEXT NOT NULL,
    uid      INTEGER,
    actor    TEXT NOT NULL,           -- who did it
    at_ns    INTEGER NOT NULL,
    until_ns INTEGER,
    PRIMARY KEY (owner, lineage, rule, kind)
) STRICT, WITHOUT ROWID;
