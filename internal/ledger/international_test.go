package ledger

import (
	"slices"
	"testing"

	"countersign/internal/canon"
)

// An allowlist means a domain, in whichever of its two forms the list or the action has it: the
// organization's list, the client's, and both together. Domains that only look alike are others.
func TestInternationalDomains(t *testing.T) {
	t.Parallel()
	listed := func(domain string) []string {
		f := canon.NewFields(must(canon.Parse([]byte(`{"list":["` + domain + `"]}`))))
		domains := parseDomains(f, "list")
		if err := f.Err(); err != nil {
			t.Fatalf("%s is refused: %s", domain, refusedFields(err))
		}
		return domains
	}
	for _, c := range []struct {
		list, url string
		strange   string // the domain that is not on the list; "" if all are
	}{
		{"bücher.example", "https://bücher.example/x", ""},
		{"bücher.example", "https://xn--bcher-kva.example/x", ""},
		{"xn--bcher-kva.example", "https://bücher.example/x", ""},
		{"xn--bcher-kva.example", "https://shop.BÜCHER.example:8443/x", ""},
		{"bücher.example", "reader@bücher.example", ""},
		{"bücher.example", "https://bucher.example", "bucher.example"},
		{"bücher.example", "https://xbücher.example", "xn--xbcher-4ya.example"},
		{"apple.example", "https://аpple.example", "xn--pple-43d.example"},
		{"аpple.example", "https://apple.example", "apple.example"},
		{"straße.example", "https://xn--strae-oqa.example", ""},
		{"straße.example", "https://straße.example", "strasse.example"}, // where older programs go
		{"example.com", "https://evil.net℀.example.com", "evil.net℀.example.com"},
	} {
		action, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"look","payload":{"url":"` + c.url + `"}}`)
		if err != nil {
			t.Fatal(err)
		}
		domains := listed(c.list)
		for name, q := range map[string]*Question{
			"organization": {Org: &Organization{Settings: Settings{ExternalDomainsAllowlist: domains}}, Chain: &Chain{}, Action: action},
			"client":       {Org: &Organization{}, Chain: &Chain{Limits: ClientLimits{DomainsAllowlist: domains}}, Action: action},
		} {
			if got := q.strangeDomain(); got != c.strange {
				t.Errorf("%s lists %s, and %s contacts %q, want %q", name, c.list, c.url, got, c.strange)
			}
		}
	}
	if both := onBothLists(listed("bücher.example"), listed("shop.xn--bcher-kva.example")); !slices.Equal(both, []string{"shop.xn--bcher-kva.example"}) {
		t.Errorf("both lists permit %q", both)
	}
	one, other := DefaultSettings(), DefaultSettings()
	one.ExternalDomainsAllowlist, other.ExternalDomainsAllowlist = listed("bücher.example"), listed("xn--bcher-kva.example")
	if one.policyVersion("v0+0") != other.policyVersion("v0+0") {
		t.Error("two forms of one domain are two policy versions")
	}
}

// An action that names a domain in both forms contacts one domain, and the client's findings add no
// other. The organization's rules see it in both forms.
func TestInternationalDomainsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	action, err := parseAction(`{"agent_name":"a","action_type":"tool_call","action_name":"look",
		"payload":{"a":"https://bücher.example","b":"https://xn--bcher-kva.example"},"found":{"external_domains":["bücher.example"]}}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := action.Facts.ExternalDomains; !slices.Equal(got, []string{"xn--bcher-kva.example"}) {
		t.Errorf("it contacts %q", got)
	}
	if got := action.Facts.DomainForms(); !slices.Equal(got, []string{"xn--bcher-kva.example", "bücher.example"}) {
		t.Errorf("rules see %q", got)
	}
}
