-- +goose Up

-- The search index: which records stand under a term, by their place in their list. It has
-- no authority, and can be filled again from the records. The list and the organization
-- are part of the term.
CREATE TABLE postings (
  term     INTEGER NOT NULL,
  place    BLOB    NOT NULL,
  sequence INTEGER NOT NULL,
  PRIMARY KEY (term, place)
) STRICT, WITHOUT ROWID;
