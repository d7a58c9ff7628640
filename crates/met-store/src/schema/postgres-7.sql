-- As schema/catalogue-7.sql.
CREATE TABLE reaction (
    owner    TEXT NOT NULL,
    lineage  TEXT NOT NULL,
    rule     TEXT NOT NULL,
    kind     TEXT NOT NULL,
    uid      BIGINT,
    actor    TEXT NOT NULL,
    at_ns    BIGINT NOT NULL,
    until_ns BIGINT,
    PRIMARY KEY (owner, lineage, rule, kind)
);
