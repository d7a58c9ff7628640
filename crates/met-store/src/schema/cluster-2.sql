-- When a spool last sent something new: a daemon that is started often leaves many behind.
ALTER TABLE spool ADD COLUMN seen_ns INTEGER NOT NULL DEFAULT 0;
UPDATE spool SET seen_ns = CAST(strftime('%s', 'now') AS INTEGER) * 1000000000;

-- How it stands with what was told: 0 it ended, 1 it lives, 2 it lived when its node fell silent and the job is called
-- lost. And when it was told, by the server's clock.
ALTER TABLE told ADD COLUMN standing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE told ADD COLUMN heard_ns INTEGER;
UPDATE told SET standing = 1 WHERE CASE WHEN json_valid(record)
    THEN json_extract(record, '$.state') IN ('pending', 'running', 'suspended') ELSE 0 END;
CREATE INDEX told_and_not_over ON told (node, standing) WHERE standing > 0;
