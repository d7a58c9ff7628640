-- As schema/catalogue-4.sql.
ALTER TABLE job ADD COLUMN sum BIGINT, ADD COLUMN totals_sum BIGINT, ADD COLUMN summaries_sum BIGINT;
ALTER TABLE term ADD COLUMN sum BIGINT;
