// Package archtest holds the house's rule that imports go down only. A package
// may import the project's packages that its row allows and nothing else of the
// project; a package without a row fails until somebody decides where it lives.
package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "eventhub"

// rule says what one package, or all below one ending in "/...", may import of
// the project. The first rule that fits a package counts.
type rule struct {
	pkg     string
	imports []string
}

// The house, from the ground up. "." is the root package.
var rules = []rule{
	{"internal/record/layout", nil},
	{"internal/consume", nil},
	{".", []string{"internal/consume", "internal/record/layout"}},
	{"internal/backup", nil},
	{"internal/listing", nil},
	{"internal/when", nil},
	{"admin", []string{".", "internal/listing", "internal/when"}},
	{"internal/topicconf", []string{".", "admin", "internal/filter", "internal/naming", "internal/strictjson", "internal/yamlfile"}},
	{"internal/causality/...", []string{".", "admin", "internal/..."}},
	{"internal/causality", []string{".", "admin"}},
	{"internal/demo/...", []string{".", "internal/demo/..."}},
	{"internal/...", []string{".", "internal/..."}},
	{"store", []string{".", "internal/listing"}},
	{"store/journal", []string{"internal/measure"}}, // bytes and places; what is in them is the store's
	{"store/journal/mongo/projection", []string{".", "admin", "store", "store/journal/mongo"}},
	{"store/journal/...", []string{"store/journal"}},
	{"hub/internal/member", []string{"store/journal"}},
	{"hub/internal/fetch", []string{".", "client", "internal/backup"}},
	{"store/storetest", []string{".", "store", "internal/..."}},
	{"store/pebble", []string{".", "store", "store/journal", "internal/..."}},
	{"store/storefault", []string{".", "store"}},
	{"store/...", []string{".", "store", "internal/..."}},
	{"wire", []string{".", "internal/..."}},
	{"auth/policy", []string{".", "internal/topicconf"}},
	{"auth/audit", []string{".", "admin"}},
	{"auth/guard", []string{".", "admin", "auth/policy"}},
	{"auth/limits", []string{".", "auth/guard", "internal/measure", "internal/naming", "internal/topicconf", "internal/yamlfile"}},
	{"auth", []string{".", "auth/policy", "internal/livefile", "internal/measure", "internal/naming", "internal/yamlfile"}},
	{"bus/internal/bustest", []string{".", "store"}}, // for tests
	{"bus/internal/commit", []string{".", "store"}},
	{"bus/internal/groupstate", []string{".", "admin", "store"}},
	{"bus/internal/judge", []string{".", "internal/filter"}},
	{"bus/internal/sched", nil},
	{"bus/internal/space", []string{".", "store"}},
	{"bus/internal/topicset", []string{".", "admin", "bus/internal/commit", "store", "internal/topicconf"}},
	{"bus/internal/topiclog", []string{"bus/internal/commit", "store"}},
	{"bus/internal/delayed", []string{".", "admin", "bus/internal/commit", "store"}},
	{"bus/internal/rounds", []string{".", "store"}},
	{"bus/internal/compaction", []string{".", "admin", "bus/internal/commit", "bus/internal/rounds", "store"}},
	{"bus/internal/snapshots", []string{".", "admin", "bus/internal/commit", "bus/internal/past", "bus/internal/publish", "bus/internal/rounds", "bus/internal/topiclog", "store", "internal/eventid", "internal/filter", "internal/strictjson"}},
	{"bus/internal/keyindex", []string{".", "admin", "bus/internal/commit", "store"}},
	{"bus/internal/idle", []string{".", "bus/internal/commit", "store"}},
	{"bus/internal/retention", []string{".", "admin", "bus/internal/commit", "store"}},
	{"bus/internal/producers", []string{".", "bus/internal/commit", "store"}},
	{"bus/internal/publish", []string{".", "bus/internal/commit", "store", "internal/eventid", "internal/record", "internal/record/layout"}},
	{"bus/internal/past", []string{".", "admin", "store", "internal/filter", "internal/naming"}},
	{"bus/internal/deadletter", []string{".", "admin", "bus/internal/past", "store", "internal/filter", "internal/strictjson"}},
	{"bus/internal/ackwait", []string{".", "bus/internal/deadletter", "bus/internal/groupstate", "bus/internal/publish", "store"}},
	{"bus/internal/tail", []string{".", "bus/internal/past", "bus/internal/sched", "bus/internal/topiclog", "store", "internal/budget", "internal/measure", "internal/record/layout"}},
	{"bus", []string{".", "admin", "bus/internal/...", "store", "internal/..."}},
	{"gateway/...", []string{".", "admin", "wire", "internal/..."}},
	{"client", []string{".", "admin", "wire", "internal/..."}},
	{"outbox/internal/columns", []string{".", "internal/eventid"}},
	{"outbox/outboxtest", []string{".", "outbox", "outbox/internal/columns", "internal/testsize"}},
	{"outbox", []string{".", "internal/eventid"}},
	{"outbox/outboxurl", []string{".", "outbox", "outbox/mongo", "outbox/postgres", "outbox/sqlite"}},
	{"outbox/...", []string{".", "outbox", "outbox/internal/columns"}},
	{"projector", []string{".", "admin"}},
	{"inbox", []string{"."}},
	{"inbox/...", []string{"."}},
	{"apidoc", nil},
	{"apidoc/...", nil}, // gen, which makes the documents, and a module of its own that judges them
	{"ops/console", []string{".", "admin", "internal/filter", "internal/measure"}},
	{"ops", []string{".", "admin", "apidoc", "ops/console", "internal/..."}},
	{"hub", []string{"hub/internal/...", ".", "admin", "auth", "auth/audit", "auth/guard", "auth/limits", "auth/policy", "ops", "ops/console", "bus", "gateway/...", "outbox", "outbox/outboxurl", "store", "store/journal", "store/journal/jetstream", "store/journal/mongo", "store/journal/mongo/projection", "store/memory", "store/pebble", "wire", "internal/..."}},
	{"hubtest", []string{".", "admin", "client", "hub"}},
	{"bench", []string{".", "client", "wire", "internal/..."}},
	{"bench/retention", []string{".", "admin", "bench", "client"}},
	{"bench/...", nil}, // a module of its own, which drives programs
	{"examples/sdk", []string{".", "admin", "client"}},
	{"examples/sdk/...", nil}, // a module of its own, which has the same programs for others
	{"examples/cmd/...", []string{".", "client", "examples/cmd/...", "internal/demo/...", "projector"}},
	{"deploy", nil},
	{"sdk/js", nil},
	{"cmd/eventhub", []string{".", "admin", "auth", "bench", "client", "cmd/...", "deploy", "hub", "internal/...", "outbox", "outbox/outboxurl"}},
	{"cmd/eventhub/internal/procpage", []string{"internal/demo/process", "internal/origin", "sdk/js"}},
	{"cmd/...", []string{".", "admin", "internal/..."}},
}

// isStandard reports whether a path is of the standard library: its first element has no
// dot. The root package imports nothing else from outside the project.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func fits(pattern, pkg string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(pkg, prefix+"/")
	}
	return pattern == pkg
}

// offence returns what is wrong with pkg importing path, or "".
func offence(pkg, path string) string {
	i := slices.IndexFunc(rules, func(r rule) bool { return fits(r.pkg, pkg) })
	if i < 0 {
		return "has no rule: add a row that says where its place in the house is"
	}
	if path != module && !strings.HasPrefix(path, module+"/") {
		if pkg == "." && !isStandard(path) {
			return "imports " + path + "; the root package imports nothing from outside the project but the standard library"
		}
		return ""
	}
	target := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
	if target == "" {
		target = "."
	}
	if target == pkg || slices.ContainsFunc(rules[i].imports, func(p string) bool { return fits(p, target) }) {
		return ""
	}
	return "imports " + path + "; allowed are " + strings.Join(rules[i].imports, ", ")
}

func TestImportsGoDown(t *testing.T) {
	root := filepath.Join("..", "..")
	checked := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		// Tests may reach across: end-to-end tests need to.
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		checked++
		check(t, root, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 20 {
		t.Errorf("only %d files were checked", checked)
	}
}

func check(t *testing.T, root, file string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Error(err)
		return
	}
	rel, err := filepath.Rel(root, file)
	if err != nil {
		t.Fatal(err)
	}
	pkg := path.Dir(filepath.ToSlash(rel))
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if what := offence(pkg, imported); what != "" {
			t.Errorf("%s: package %s %s", rel, pkg, what)
		}
	}
}

// TestRulesBite shows that the rules refuse what they are there for.
func TestRulesBite(t *testing.T) {
	for _, tt := range []struct {
		pkg, path string
		ok        bool
	}{
		{".", "context", true},
		{".", "github.com/google/uuid", false},
		{".", "eventhub/store", false},
		{".", "eventhub/internal/record", false},
		{"internal/record/layout", "eventhub", false},
		{"gateway/ws", "eventhub/wire", true},
		{"gateway/ws", "eventhub/bus", false},
		{"gateway/ws", "eventhub/store", false},
		{"gateway/rest", "eventhub/internal/causality", true},
		{"internal/causality", "eventhub/gateway/rest", false},
		{"admin", "eventhub/bus", false},
		{"store", "eventhub/admin", false},
		{"wire", "eventhub/admin", false},
		{"examples/cmd/heartbeat", "eventhub/admin", false},
		{"bus", "eventhub/store", true},
		{"bus", "eventhub/bus/internal/sched", true},
		{"bus/internal/sched", "eventhub/store", false},
		{"bus/internal/space", "eventhub/bus/internal/commit", false},
		{"bus/internal/delayed", "eventhub/bus/internal/commit", true},
		{"bus/internal/delayed", "eventhub/bus", false},
		{"bus/internal/groupstate", "eventhub/store", true},
		{"bus/internal/groupstate", "eventhub/bus/internal/sched", false},
		{"bus/internal/commit", "eventhub/bus/internal/sched", false},
		{"bus/internal/publish", "eventhub/bus/internal/groupstate", false},
		{"bus/internal/deadletter", "eventhub/bus/internal/publish", false},
		{"bus/internal/ackwait", "eventhub/bus/internal/past", false},
		{"hub", "eventhub/bus/internal/sched", false},
		{"bus", "eventhub/store/pebble", false},
		{"bus", "eventhub/wire", false},
		{"store/pebble", "eventhub/store", true},
		{"store/pebble", "eventhub/bus", false},
		{"store/memory", "eventhub/store/pebble", false},
		{"store/journal", "eventhub", false},
		{"store/journal/jetstream", "eventhub/store/journal", true},
		{"store/journal/jetstream", "eventhub/store", false},
		{"store/storefault", "eventhub/store", true},
		{"store/storefault", "eventhub/store/memory", false},
		{"hub", "eventhub/bus", true},
		{"gateway/ws", "eventhub/auth/guard", false},
		{"ops", "eventhub/bus", false},
		{"auth/guard", "eventhub/bus", false},
		{"cmd/eventhub", "eventhub/bus", false},
		{"bench", "eventhub/hub", false},
		{"bench/peers", "eventhub/bench", false},
		{"cmd/eventhub", "eventhub/internal/demo/process", true},
		{"cmd/eventhub", "eventhub/examples/cmd/heartbeat", false},
		{"internal/demo/heartbeat", "eventhub/hub", false},
		{"examples/cmd/heartbeat", "eventhub/internal/demo/heartbeat", true},
		{"examples/cmd/heartbeat", "eventhub/hub", false},
		{"newroom", "context", false},
	} {
		if what := offence(tt.pkg, tt.path); (what == "") != tt.ok {
			t.Errorf("%s importing %s: %q; want ok = %v", tt.pkg, tt.path, what, tt.ok)
		}
	}
}
