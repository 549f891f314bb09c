package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"countersign/internal/servicetest"
)

// What happens to the files beside the database while a server runs shows in its log and
// in /readyz, by the file's own name, and clears when the file is restored. The server
// goes on meanwhile.
//
//countersign:race
func TestFilesThatGoWrong(t *testing.T) {
	t.Parallel()
	const keys, heads = "keys.json", "heads.json"
	for name, test := range map[string]struct {
		file, check, reason string
		harm                func(path string) error
		doctor              string // says so too; "" where it does not look
	}{
		"key file deleted":          {keys, "key file", "key_file", os.Remove, "key file not found"},
		"key file damaged":          {keys, "key file", "key_file", spoil, "not a valid key file"},
		"key file open to others":   {keys, "key file", "key_file", func(path string) error { return os.Chmod(path, 0o644) }, "open to other users"},
		"key file replaced":         {keys, "key file", "key_file", replaceByFolder, "not a valid key file"},
		"file of heads damaged":     {heads, "file of heads", "heads_not_written", spoil, "not a valid file of heads"},
		"file of heads is a folder": {heads, "file of heads", "heads_not_written", replaceByFolder, "file of heads"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := migratedSQLite(t)
			folder := s.folder
			p := start(t, s.flags...)
			c := p.admin(t)
			c.seal(t)
			path := filepath.Join(folder, test.file)
			servicetest.Eventually(t, "the file is there", func() bool { _, err := os.Stat(path); return err == nil })
			said := func(status string) bool {
				report := c.readiness(t)
				got, detail := report.detail(test.check)
				reasons := slices.ContainsFunc(report.Reasons, func(r struct{ Name string }) bool { return r.Name == test.reason })
				if strings.Contains(detail, folder) {
					t.Errorf("anyone can read where the file is: %s", detail)
				}
				return report.code == http.StatusOK && got == status && reasons == (status == "degraded")
			}
			servicetest.Eventually(t, "all is well", func() bool { return said("ok") })
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := test.harm(path); err != nil {
				t.Fatal(err)
			}
			servicetest.Eventually(t, "/readyz tells", func() bool { return said("degraded") })
			c.seal(t)
			servicetest.Eventually(t, "the log tells", func() bool { return strings.Contains(p.log.String(), test.doctor) })
			if r := execute(t, "doctor", "--data", folder); r.code == 0 || !strings.Contains(r.out, test.doctor) {
				t.Errorf("doctor does not say %q: %s", test.doctor, r.out)
			}
			if log := p.log.String(); test.file == heads && strings.Contains(log, "key file") {
				t.Errorf("the file of heads is called a key file:\n%s", log)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
			servicetest.Eventually(t, "/readyz tells that all is well again", func() bool { return said("ok") })
			c.seal(t)
		})
	}
}

func spoil(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }

// replaceByFolder tries again where the server has written the file meanwhile.
func replaceByFolder(path string) (err error) {
	for range 100 {
		if err = os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err = os.Mkdir(path, 0o700); err == nil {
			return nil
		}
	}
	return err
}

// A heads file that cannot be written shows, also where nothing is to be written just
// now.
//
//countersign:race
func TestUnwrittenHeadsShow(t *testing.T) {
	t.Parallel()
	s, elsewhere := migratedSQLite(t), filepath.Join(t.TempDir(), "heads")
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	p := start(t, s.args("--heads", filepath.Join(elsewhere, "heads.json"))...)
	c := p.admin(t)
	c.seal(t)
	said := func(status string) bool { got, _ := c.readiness(t).detail("file of heads"); return got == status }
	servicetest.Eventually(t, "all is well", func() bool { return said("ok") })
	if err := os.Rename(elsewhere, elsewhere+"-away"); err != nil {
		t.Fatal(err)
	}
	c.seal(t)
	servicetest.Eventually(t, "/readyz tells", func() bool { return said("degraded") })
	if err := os.Rename(elsewhere+"-away", elsewhere); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "/readyz tells that all is well again", func() bool { return said("ok") })
}
