package auth

import "testing"

// FuzzTokens reads what may be no file of tokens: a file that passes has one, and one that does not
// leaves the table as it was.
func FuzzTokens(f *testing.F) {
	for _, s := range []string{
		"tokens:\n- {name: ops, token: s3cret-s3cret-s3cret-s3cret-s3cret, scopes: [\"*\"]}\n", `{"tokens":[{"name":"a","token":"s3cret-s3cret-s3cret-s3cret-s3cret","policy":{"rules":[]}}]}`,
		"tokens:\n- s3cret-s3cret-s3cret-s3cret-s3cret\n", "tokens: {name: a}", "tokens:\n- &a {name: *a}\n", "tokens:\n- {name: a, token: \"s3cret-s3cret-s3cret-s3cret-s3cret\\0\"}\n", "\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		tokens := newStaticTokens(func(string) bool { return false })
		err := tokens.take("f.yaml", content)
		if n := len(*tokens.table.Load()); (err == nil) != (n > 0) {
			t.Errorf("%d tokens, %v", n, err)
		}
		for _, token := range *tokens.table.Load() {
			token.revoke()
		}
	})
}
