package sqlite

// What the store asks of SQLite, for tests of how SQLite answers it.
var ApprovalsQuery = approvalsQuery

const HeadAnchorsQuery = headAnchorsQuery
