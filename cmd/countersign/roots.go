package main

// Where the system has no certificates, as in a container that holds nothing but this
// program, the roots of these take their place.
import _ "golang.org/x/crypto/x509roots/fallback"
