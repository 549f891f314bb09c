// Package observe makes what the program tells its operators: log lines, metrics
// and traces. None of them ever carries a token, a key, an id that opens
// something, a signature, a hash or a payload: routes appear as patterns, and a
// request's id ties a line to an answer.
package observe
