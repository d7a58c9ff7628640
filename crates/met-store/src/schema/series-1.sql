-- Whose samples. By full name and not by a key of the catalogue: that may be lost and begun again.
CREATE TABLE subject (
    key         INTEGER PRIMARY KEY,
    cluster     TEXT NOT NULL,
    manager     TEXT NOT NULL,
    id          TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    UNIQUE (id, manager, incarnation, cluster)
) STRICT;

CREATE TABLE block (
    key        INTEGER PRIMARY KEY,
    subject    INTEGER NOT NULL REFERENCES subject (key) ON DELETE CASCADE,
    table_name TEXT NOT NULL,
    first_ms   INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    samples    INTEGER NOT NULL,
    data       BLOB NOT NULL,
    UNIQUE (subject, table_name, first_ms)
) STRICT;
