package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// A sign-in link leads to the port that the server took, also after it stopped, and to
// its public address where it has one. Where that cannot be known, the command says so.
// Each start logs one line about organizations without a policy set, and none when
// there is no such organization.
//
//countersign:race
func TestServerNotesWhereItIs(t *testing.T) {
	t.Parallel()
	s := migratedSQLite(t)
	signIn := func(words ...string) string {
		return succeed(t, s.args(append([]string{"keys", "sign-in"}, words...)...)...)
	}
	const unguarded = "organizations have no policy set"

	first := start(t, s.flags...)
	for _, words := range [][]string{nil, {"--listen", "127.0.0.1:0"}} {
		if link := signIn(words...); !strings.HasPrefix(link, first.address+"/sign-in#csl_") {
			t.Errorf("%v: the link is not one to the server at %s", words, first.address)
		}
	}
	if log := first.log.String(); strings.Count(log, unguarded) != 1 || !strings.Contains(log, `"count":1,"organizations":"default"`) {
		t.Errorf("the first start does not say that no policy is in force: %s", log)
	}
	first.admin(t).call(t, http.MethodPut, "/v1/policies", `{"rules":[{"name":"all","when":"true","decision":"allow_with_flag","reason":"seen"}]}`, new(any))
	first.stop(t)
	if link := signIn(); !strings.HasPrefix(link, first.address+"/sign-in#") {
		t.Error("the link is not one to where the server was")
	}

	second := start(t, append([]string{"--public-url", "https://people.example/"}, s.flags...)...)
	if link := signIn(); !strings.HasPrefix(link, "https://people.example/sign-in#") {
		t.Error("the link is not one to the server's public address")
	}
	if log := second.log.String(); strings.Contains(log, unguarded) {
		t.Errorf("the start says that no policy is in force: %s", log)
	}
	second.stop(t)

	writeFile(t, filepath.Join(s.folder, "serve.lock"), []byte("file:///nonsense"))
	if r := execute(t, s.args("keys", "sign-in")...); r.code != 0 || !strings.HasPrefix(r.out, "http://127.0.0.1:8080/sign-in#") || !strings.Contains(r.err, "--url") {
		t.Errorf("without a noted address: status %d, and it says %q", r.code, r.err)
	}
}
