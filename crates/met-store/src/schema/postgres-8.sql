-- As schema/catalogue-8.sql.
CREATE TABLE brief (
    job    BIGINT PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    format BIGINT NOT NULL,
    sum    BIGINT NOT NULL,
    data   BYTEA NOT NULL
);
