-- The id that a manager's users know a job by, where it is not `id`: element 7 of the array 1234 is 1234_7.
ALTER TABLE job ADD COLUMN alias TEXT;
CREATE INDEX job_by_alias ON job (alias) WHERE alias IS NOT NULL;

-- What is to be known after a restart and belongs to no job: until when a scheduler has told everything.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
