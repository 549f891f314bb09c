// Package review implements the commands that use a server's API, mostly for reviewers and admins
// of an organization.
package review
