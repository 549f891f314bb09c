package httpapi

import (
	"encoding/hex"
	"net/http"

	"countersign/internal/canon"
	"countersign/internal/fault"
	"countersign/internal/service"
)

// maxPolicy is the maximum size of a policy set, in bytes. Every action is checked against it.
const maxPolicy = 256 << 10

// policyDocument reads a body that is a policy set in YAML or JSON.
func (x *exchange) policyDocument() (*service.PolicyDocument, error) {
	text, err := x.read(maxPolicy)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, fault.Errorf(fault.CodeInvalidJSON, "the request needs a policy set as its body")
	}
	switch {
	case x.sentYAML():
		return &service.PolicyDocument{Text: text, YAML: true}, nil
	case mediaType(x.r.Header.Get("Content-Type")) == "application/json":
		return &service.PolicyDocument{Text: text}, nil
	}
	return nil, fault.Errorf(fault.CodeUnsupportedMedia, "send the policy set as Content-Type: application/yaml or application/json")
}

// sentYAML reports whether the request says that its body is YAML.
func (x *exchange) sentYAML() bool {
	switch mediaType(x.r.Header.Get("Content-Type")) {
	case "application/yaml", "application/x-yaml", "text/yaml":
		return true
	}
	return false
}

func listPolicies(x *exchange) error {
	q := x.query()
	limit, before := q.limit(), q.numberCursor(policyCursor)
	if err := q.err(); err != nil {
		return err
	}
	policies, current, err := x.api.service.Policies(x.r.Context(), x.caller, before, limit)
	if err != nil {
		return err
	}
	cursor := func(p *service.PolicyView) string { return encodeNumberCursor(policyCursor, p.Number) }
	extra := canon.AppendString([]byte(`,"current":`), current.Version)
	return listWith(x, extra, policies, limit, cursor, "", appendPolicySummary)
}

func getPolicy(x *exchange) error {
	policy, err := x.api.service.Policy(x.r.Context(), x.caller, x.r.PathValue("version"))
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendPolicy(nil, policy))
}

func putPolicy(x *exchange) error {
	document, err := x.policyDocument()
	if err != nil {
		return err
	}
	policy, err := x.api.service.PutPolicy(x.r.Context(), x.caller, document)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendPolicy(nil, policy))
}

func checkPolicy(x *exchange) error {
	document, err := x.policyDocument()
	if err != nil {
		return err
	}
	set, err := x.api.service.CheckPolicy(x.r.Context(), x.caller, document)
	if err != nil {
		return err
	}
	hash, fastPath := set.Hash(), false
	if allowed, given := set.FastPath(); given {
		fastPath = allowed
	}
	w := canon.BeginObject(nil)
	w.Bool("valid", true)
	w.Int("rules", int64(len(set.Rules())))
	w.Bool("fast_path", fastPath)
	w.String("canonical_sha256", hex.EncodeToString(hash[:]))
	return x.answer(http.StatusOK, w.End())
}

func simulatePolicy(x *exchange) error {
	request, err := x.simulation()
	if err != nil {
		return err
	}
	report, err := x.api.service.SimulatePolicy(x.r.Context(), x.caller, request)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, appendSimulation(nil, report))
}

// simulation reads a candidate set in YAML, which is the whole body as where a set is put, or a
// request in JSON, which can also bound the simulation.
func (x *exchange) simulation() (*service.Simulation, error) {
	if !x.sentYAML() {
		return parsed(x, service.ParseSimulation)
	}
	document, err := x.policyDocument()
	if err != nil {
		return nil, err
	}
	return service.SimulationOf(document), nil
}
