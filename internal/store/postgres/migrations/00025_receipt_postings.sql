-- +goose Up

-- The search index of receipts. Their numbers have no gaps, so one row has the receipts of a
-- block of 64 that stand under a term: bit i is number 64 * block + i. Rows of receipts in
-- postings, which has eight bytes as their place, are written again by countersign reindex.
create table receipt_postings (
    term     bigint not null,
    block    bigint not null,
    receipts bigint not null,
    primary key (term, block)
);

delete from postings where length(place) = 8;
