-- Two more values that lists are sorted by. All rows are written again, piece by piece (`listed.rs`).
ALTER TABLE listed ADD COLUMN submit_ns INTEGER;
ALTER TABLE listed ADD COLUMN exit_status INTEGER;
DELETE FROM listed;
DELETE FROM meta WHERE name IN ('listed', 'listed_to');

-- The records of jobs that are over for those who look at many (`brief.rs`): without processes and marked work, packed
-- together with their figures. Computed from `job`, `total` and `summary`; a row of another format is not read.
CREATE TABLE brief (
    job    INTEGER PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    format INTEGER NOT NULL,
    sum    INTEGER NOT NULL,         -- checksum of the rest
    data   BLOB NOT NULL
) STRICT;
