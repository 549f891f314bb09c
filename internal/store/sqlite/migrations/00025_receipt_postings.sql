-- +goose Up

-- The search index of receipts. Their numbers have no gaps, so one row has the receipts of a
-- block of 64 that stand under a term: bit i is number 64 * block + i. Rows of receipts in
-- postings, which has eight bytes as their place, are written again by countersign reindex.
CREATE TABLE receipt_postings (
  term     INTEGER NOT NULL,
  block    INTEGER NOT NULL,
  receipts INTEGER NOT NULL,
  PRIMARY KEY (term, block)
) STRICT, WITHOUT ROWID;

DELETE FROM postings WHERE length(place) = 8;
