-- The random id of the state folder that sends under a node's name; NULL where it sends none.
ALTER TABLE node ADD COLUMN identity TEXT;
