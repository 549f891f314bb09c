package httpapi_test

import "strings"

const someID = "00000000-0000-4000-8000-000000000000"

var badIssues = []badField{
	{"nothing", `{}`, []string{"/artifact_type", "/artifact_id"}},
	{"type is another word", `{"artifact_type":"planted-chain","artifact_id":"` + someID + `"}`, []string{"/artifact_type"}},
	{"type in another case", `{"artifact_type":"Receipt","artifact_id":"` + someID + `"}`, []string{"/artifact_type"}},
	{"type is null", `{"artifact_type":null,"artifact_id":"` + someID + `"}`, []string{"/artifact_type"}},
	{"id is a number", `{"artifact_type":"receipt","artifact_id":1}`, nil},
	{"id is a receipt number", `{"artifact_type":"receipt","artifact_id":"CSN-2026-00001"}`, []string{"/artifact_id"}},
	{"id with a scheme", `{"artifact_type":"receipt","artifact_id":"urn:uuid:` + someID + `"}`, []string{"/artifact_id"}},
	{"id is too long", `{"artifact_type":"receipt","artifact_id":"` + long + `"}`, nil},
	{"expiry in words", `{"artifact_type":"receipt","artifact_id":"` + someID + `","expires_at":"planted-tomorrow"}`, []string{"/expires_at"}},
	{"expiry is a number", `{"artifact_type":"receipt","artifact_id":"` + someID + `","expires_at":1900000000}`, []string{"/expires_at"}},
	{"a text of one's choice", `{"artifact_type":"receipt","artifact_id":"` + someID + `","token":"planted-a"}`, []string{"/token"}},
	{"another organization", `{"artifact_type":"receipt","artifact_id":"` + someID + `","organization_id":"planted-a"}`, []string{"/organization_id"}},
}

var badRevocations = []badField{
	{"reason is a number", `{"reason":1}`, []string{"/reason"}},
	{"reason is empty", `{"reason":""}`, []string{"/reason"}},
	{"reason has a line break", `{"reason":"planted-\n"}`, []string{"/reason"}},
	{"reason is too long", `{"reason":"` + strings.Repeat("é", 501) + `"}`, []string{"/reason"}},
	{"a moment of one's choice", `{"revoked_at":"2026-01-01T00:00:00.000Z"}`, []string{"/revoked_at"}},
}

var badSigningKeys = []badField{
	{"name is a number", `{"name":1}`, []string{"/name"}},
	{"name is empty", `{"name":""}`, []string{"/name"}},
	{"name has a line break", `{"name":"planted-\n"}`, []string{"/name"}},
	{"name is too long", `{"name":"` + long + `"}`, []string{"/name"}},
	{"public key is no base64", `{"public_key":"planted-key"}`, []string{"/public_key"}},
	{"public key is empty", `{"public_key":""}`, []string{"/public_key"}},
	{"public key is too short", `{"public_key":"` + strings.Repeat("A", 40) + `"}`, []string{"/public_key"}},
	{"public key is too long", `{"public_key":"` + strings.Repeat("A", 48) + `"}`, []string{"/public_key"}},
	{"public key is a list", `{"public_key":["planted-a"]}`, nil},
	{"a private key", `{"private_key":"planted-a"}`, []string{"/private_key"}},
	{"a status of one's choice", `{"status":"active"}`, []string{"/status"}},
}
