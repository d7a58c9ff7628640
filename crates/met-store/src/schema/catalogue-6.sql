-- Use of the system over time (`usage.rs`): sums of a quarter of an hour, packed by day. They outlive the jobs that
-- they were added up from.
CREATE TABLE usage_group (
    key  INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    text TEXT NOT NULL,              -- whose or what, as JSON
    UNIQUE (kind, text)
) STRICT;

CREATE TABLE usage_row (
    kind INTEGER NOT NULL,
    day  INTEGER NOT NULL,           -- days since 1970, UTC
    grp  INTEGER NOT NULL,           -- a usage_group
    data BLOB NOT NULL,
    PRIMARY KEY (kind, day, grp)
) STRICT, WITHOUT ROWID;

-- What each job added, to take it back when the job changes.
CREATE TABLE usage_job (
    job  INTEGER PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    data BLOB NOT NULL
) STRICT;
