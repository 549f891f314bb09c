// Package anchor proves that a digest existed at a time that this service does not control: with a
// token of an RFC 3161 timestamp authority, and with an OpenTimestamps proof that ends in a Bitcoin
// block. It requests, upgrades and verifies anchors. Their bytes are stored by others.
//
// A verdict on an anchor never depends on who delivered it. A token is verified with the configured
// roots at the token's own time, and a proof with block headers, which carry their own proof of
// work.
package anchor
