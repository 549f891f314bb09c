package service

// ShownURL exposes shownURL to tests.
var ShownURL = shownURL
