package main

// These root certificates are used if the system has none, as in a container that holds
// nothing but this program.
import _ "golang.org/x/crypto/x509roots/fallback"
