-- Where a node's own page for Prometheus is, if it has one that others can reach.
ALTER TABLE node ADD COLUMN page_port INTEGER;
ALTER TABLE node ADD COLUMN page_tls INTEGER NOT NULL DEFAULT 0;
