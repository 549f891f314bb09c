package httpapi_test
import ("testing";"time")
func TestSmoke(t *testing.T) {
	s := start(t, openSQLite(t), setup{})
	for range 3 {
	b := time.Now()
	id := s.open(t, s.acme.agent, `{"name":"x"}`)
	t.Log("open", time.Since(b)); b = time.Now()
	s.record(t, s.acme.agent, id, anAction)
	t.Log("record", time.Since(b)); b = time.Now()
	s.complete(t, s.acme.agent, id, "")
	t.Log("complete", time.Since(b)); b = time.Now()
	s.get(t, s.acme.agent, "/v1/receipts").expect(t, 403)
	t.Log("problem", time.Since(b)); b = time.Now()
	s.get(t, s.acme.admin, "/v1/chains/"+id+"/events").expect(t, 200)
	t.Log("events", time.Since(b)); b = time.Now()
	}
}
