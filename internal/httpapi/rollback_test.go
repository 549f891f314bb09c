package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"

	"countersign/internal/keyring"
)

// A database without an organization that receipts were given out of is not ready
// and seals nothing for anyone; it says so without naming the one that is missing.
func TestMissingOrganization(t *testing.T) {
	eachStore(t, func(t *testing.T, open func(*testing.T) *database) {
		m := &memory{}
		s := start(t, open(t), setup{watch: m})
		ids := map[credential]string{}
		for _, key := range []credential{s.acme.agent, s.rival.agent} {
			ids[key] = s.open(t, key, `{"name":"n"}`)
		}
		gone := uuid.MustParse(s.acme.id)
		gone[0] ^= 0xff
		m.heads.Store(&map[uuid.UUID]keyring.Seen{gone: {Count: 2, Slug: "vanished"}})
		type report struct {
			Checks []struct{ Name, Status, Detail string }
		}
		said := decode[report](t, s.get(t, credential{}, "/readyz").expect(t, http.StatusServiceUnavailable).without(t, "vanished", gone.String()))
		if len(said.Checks) != 5 || said.Checks[2].Name != "rollback" || said.Checks[2].Status != "failed" {
			t.Errorf("ready says %+v", said)
		}
		for key, id := range ids {
			s.record(t, key, id, anAction)
			s.post(t, key, "/v1/chains/"+id+"/complete", "").refuse(t, http.StatusServiceUnavailable, "store_rolled_back").without(t, "vanished", gone.String())
		}
		m.heads.Store(nil)
		for key, id := range ids {
			s.complete(t, key, id, "")
		}
		s.limited(t, nil, 0).get(t, credential{}, "/readyz").expect(t, http.StatusOK)
	})
}
