-- In which order jobs were written. Whoever passes records on asks for those behind the last that was taken:
-- a job that is written again moves to the end, so no last word on a job is missed.
ALTER TABLE job ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
UPDATE job SET changed = key;
CREATE UNIQUE INDEX job_by_change ON job (changed);

-- The number given last. Not the highest of `job`: that falls when the job is removed, and would be given twice.
CREATE TABLE change (
    last INTEGER NOT NULL
) STRICT;
INSERT INTO change (last) SELECT coalesce(max(changed), 0) FROM job;
