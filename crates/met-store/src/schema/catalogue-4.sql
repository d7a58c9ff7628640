-- Checksums of what is kept of a job, so that a byte that changed on disk is noticed: of its row (the columns of
-- `reading::SUMMED`), its totals and its summaries. NULL where an earlier version wrote it and it is not summed yet.
ALTER TABLE job ADD COLUMN sum INTEGER;
ALTER TABLE job ADD COLUMN totals_sum INTEGER;
ALTER TABLE job ADD COLUMN summaries_sum INTEGER;
ALTER TABLE term ADD COLUMN sum INTEGER;
