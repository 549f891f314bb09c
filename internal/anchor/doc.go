// Package anchor ties a digest to a moment that this service does not control:
// a token of an RFC 3161 timestamp authority, and an OpenTimestamps proof that
// ends in a Bitcoin block. It asks for anchors, upgrades and verifies them; what
// it hands out and takes in is bytes, for others to keep.
//
// A verdict on an anchor never depends on who delivered it. A token is judged by
// the configured roots at the token's own time, a proof by block headers that
// carry their work with them.
package anchor
