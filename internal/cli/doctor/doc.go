// Package doctor implements the commands that check an installation and a running server.
package doctor
