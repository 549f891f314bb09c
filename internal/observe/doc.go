// Package observe provides logging, metrics and traces for operators. None of them ever
// contains a token, a key, an id that grants access, a signature, a hash or a payload: routes
// appear as patterns, and a request id links a log line to an answer.
package observe
