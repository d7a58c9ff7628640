-- The id that a manager's users know a job by, where it is not `id`: element 7 of the array 1234 is 1234_7.
ALTER TABLE job ADD COLUMN alias TEXT;
CREATE INDEX job_by_alias ON job (alias) WHERE alias IS NOT NULL;

-- What is to be known after a restart and belongs to no job: until when a scheduler has told everything.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Something that outlives jobs and that they share: a graphics card, or a part of one. Its series lie in the
-- files of the days, once, however many jobs used it.
CREATE TABLE device (
    key       INTEGER PRIMARY KEY,
    uuid      TEXT NOT NULL UNIQUE,
    name      TEXT NOT NULL,
    vendor    TEXT NOT NULL,
    idle_mw   INTEGER,           -- the lowest power seen while it did nothing
    lowest_mw INTEGER            -- the lowest power seen at all
) STRICT;

-- Which job had which device, from when to when.
CREATE TABLE allocation (
    job      INTEGER NOT NULL REFERENCES job (key) ON DELETE CASCADE,
    device   INTEGER NOT NULL REFERENCES device (key) ON DELETE CASCADE,
    begin_ns INTEGER NOT NULL,
    end_ns   INTEGER,            -- NULL while the job lives
    held_by  TEXT NOT NULL,
    PRIMARY KEY (job, device)
) STRICT, WITHOUT ROWID;

CREATE INDEX allocation_by_device ON allocation (device, begin_ns);

-- What records of before know of their cards.
INSERT OR IGNORE INTO device (uuid, name, vendor)
SELECT card.value ->> 'uuid', coalesce(card.value ->> 'name', ''), coalesce(card.value ->> 'vendor', '')
FROM job, json_each(job.detail, '$.gpus') AS card
WHERE json_valid(job.detail) AND card.value ->> 'uuid' <> '';

INSERT OR IGNORE INTO allocation (job, device, begin_ns, end_ns, held_by)
SELECT job.key, device.key, coalesce(card.value ->> 'held_since_ns', job.start_ns, job.sort_ns), job.end_ns,
       coalesce(card.value ->> 'held_by', '')
FROM job, json_each(job.detail, '$.gpus') AS card JOIN device ON device.uuid = card.value ->> 'uuid'
WHERE json_valid(job.detail);

-- What a kilowatt hour emitted from a time on, as providers or people said.
CREATE TABLE factor (
    since_ns   INTEGER PRIMARY KEY,
    mg_per_kwh INTEGER NOT NULL,
    source     TEXT NOT NULL
) STRICT;
