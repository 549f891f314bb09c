package canon

import "testing"

// A pointer leads to the value that RFC 6901 says, and a malformed one nowhere.
func TestAtFollowsPointers(t *testing.T) {
	t.Parallel()
	document := mustParse(t, `{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"m~n":8,"two words":7,"~1":9,"o":{"":{"":3}}}`)
	for pointer, want := range map[string]string{
		"/foo": `["bar","baz"]`, "/foo/0": `"bar"`, "/foo/1": `"baz"`, "/": `0`, "/a~1b": `1`, "/c%d": `2`, "/m~0n": `8`, "/two words": `7`, "/~01": `9`, "/o//": `3`,
		"foo": "", "/foo/2": "", "/foo/-": "", "/foo/-1": "", "/foo/+1": "", "/foo/01": "", "/foo/": "", "/foo/0/x": "", "/missing": "", "/a/b": "",
		"/foo/99999999999999999999": "", "/o/x/y": "", "/m~n": "", "/~1": "", "/~": "", "/m~2n": "",
	} {
		found, ok := document.At(pointer)
		if got := string(found.Append(nil)); ok != (want != "") || ok && got != want {
			t.Errorf("%q leads to %s (%t), want %s", pointer, got, ok, want)
		}
	}
	if whole, ok := document.At(""); !ok || whole.Kind() != Object {
		t.Error("the empty pointer is not the whole document")
	}
	for name, want := range map[string]string{"a/b": "a~1b", "m~n": "m~0n", "~1": "~01", "": "", "é": "é"} {
		if got := PointerToken(name); got != want {
			t.Errorf("%q is spelled %q, want %q", name, got, want)
		}
	}
}
