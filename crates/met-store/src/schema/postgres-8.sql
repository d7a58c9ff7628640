-- As schema/catalogue-8.sql.
ALTER TABLE listed ADD COLUMN submit_ns BIGINT;
ALTER TABLE listed ADD COLUMN exit_status BIGINT;
TRUNCATE listed;
DELETE FROM meta WHERE name IN ('listed', 'listed_to');

CREATE TABLE brief (
    job    BIGINT PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    format BIGINT NOT NULL,
    sum    BIGINT NOT NULL,
    data   BYTEA NOT NULL
);
