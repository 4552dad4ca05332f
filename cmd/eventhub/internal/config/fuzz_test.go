package config

import "testing"

// FuzzFile reads what may be no configuration: keys that there are not never get a value, and what
// is wrong is an error and not a panic.
func FuzzFile(f *testing.F) {
	for _, s := range []string{"port: 5\n", "port: [1, 2]\nport: 3\n", "a: &a {b: *a}\n", "--- \n---\n", "port: !!binary AA==\n", "? {a: b}\n: c\n", "\x00", "port: 0x7f\nlist: [a, b]\n", "<<: {port: 1}\n"} {
		f.Add([]byte(s))
	}
	keys := []Key{{Name: "port", Type: Int(1)}, {Name: "list", Type: List(func(string) error { return nil })}, {Name: "secret", Type: Text}}
	f.Fuzz(func(t *testing.T, content []byte) {
		file := yamlFile{path: "f.yaml", keys: keys, lines: make(map[string]int)}
		values, err := file.Unmarshal(content)
		if err != nil {
			t.Errorf("an error that is not collected: %v", err)
		}
		for name, value := range values {
			switch value.(type) {
			case string, []string:
			default:
				t.Errorf("%s is %T", name, value)
			}
			if name != "port" && name != "list" && name != "secret" {
				t.Errorf("there is no key %q", name)
			}
			if file.lines[name] == 0 {
				t.Errorf("%s has no line", name)
			}
		}
	})
}
