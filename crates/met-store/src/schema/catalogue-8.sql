-- Two more values that lists are sorted by. All rows are written again, piece by piece (`listed.rs`).
ALTER TABLE listed ADD COLUMN submit_ns INTEGER;
ALTER TABLE listed ADD COLUMN exit_status INTEGER;
DELETE FROM listed;
DELETE FROM meta WHERE name IN ('listed', 'listed_to');
