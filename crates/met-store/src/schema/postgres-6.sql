-- As schema/catalogue-6.sql.
CREATE TABLE usage_group (
    key  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind BIGINT NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (kind, text)
);

CREATE TABLE usage_row (
    kind BIGINT NOT NULL,
    day  BIGINT NOT NULL,
    grp  BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (kind, day, grp)
);

CREATE TABLE usage_job (
    job  BIGINT PRIMARY KEY REFERENCES job (key) ON DELETE CASCADE,
    data BYTEA NOT NULL
);
