-- +goose Up

-- The search index: which records stand under a term, by their place in their list. It has
-- no authority, and can be filled again from the records. The list and the organization
-- are part of the term.
create table postings (
    term     bigint not null,
    sequence bigint not null,
    place    bytea  not null,
    primary key (term, place)
);
