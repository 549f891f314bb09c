// Package gateway is the command that governs any MCP server. It stands between an MCP client and
// the server, has every tool call decided by the service before the server gets it, and passes
// everything else on as it is.
//
// A tool call reaches the server only as a permit, which decide makes for one message. So no other
// path leads there: pass refuses tool calls.
package gateway
