package bundle

import (
	"slices"
	"strings"
	"testing"
)

// TestRegistryKeys promises that a registry in which a key has no id of its own is refused,
// also where nothing vouches for it: a signature must not have the choice between two keys.
func TestRegistryKeys(t *testing.T) {
	t.Parallel()
	v := makeVectors(t, 0)
	trust := map[string]*Trust{"none": mustTrust(t, Keys{})}
	registry := parseDocument(t, v.Bases["bundle"]).(map[string]any)["signing_keys"].(string)
	second := strings.Replace(approverID, "000000000001", "000000000002", 1)
	for name, replace := range map[string][2]string{
		"an id twice": {second, approverID},
		"an empty id": {second, ""},
		"no id":       {`"key_id":"` + second + `",`, ""},
		"no list":     {`{"keys":[`, `{"kept":[`},
	} {
		changed := strings.Replace(registry, replace[0], replace[1], 1)
		if changed == registry {
			t.Fatalf("%s: nothing was changed", name)
		}
		c := bundleCase{Name: name, Base: "bundle", Trust: "none", Edits: []edit{{Path: []any{"signing_keys"}, Op: "set", Value: changed}}}
		c.judge(t, v, trust)
		if !slices.Contains(c.Failed, CheckApprovalSignatures) {
			t.Errorf("%s: %s, failed %v, want %s", name, c.Verdict, c.Failed, CheckApprovalSignatures)
		}
	}
}
