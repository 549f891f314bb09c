package service

// ShownURL is what the audit log keeps of an address.
var ShownURL = shownURL
