-- What a kilowatt hour emitted from a time on, as providers or people said.
CREATE TABLE factor (
    since_ns   INTEGER PRIMARY KEY,
    mg_per_kwh INTEGER NOT NULL,
    source     TEXT NOT NULL
) STRICT;
