package apidoc_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/apidoc"
	"eventhub/wire"
)

// at returns the value that a path of names and places leads to in a document.
func at(t *testing.T, doc apidoc.Document, path string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(doc.JSON, &v); err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(path, "/") {
		switch in := v.(type) {
		case map[string]any:
			v = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(in) {
				t.Fatalf("%s: there is no %q", path, name)
			}
			v = in[i]
		default:
			v = nil
		}
		if v == nil {
			t.Fatalf("%s: there is no %q", path, name)
		}
	}
	return v
}

func texts(t *testing.T, list any) []string {
	t.Helper()
	var all []string
	for _, v := range list.([]any) {
		all = append(all, v.(string))
	}
	return all
}

// shown are the root types that are answered as they are, by the name of their schema.
var shown = map[string]any{
	"Event": eventhub.Event{}, "FilterObject": eventhub.Filter{},
	"TopicInfo": admin.TopicInfo{}, "GroupInfo": admin.GroupInfo{}, "GroupPattern": admin.GroupPattern{},
	"MemberInfo": admin.MemberInfo{}, "Peer": eventhub.Peer{}, "Blocked": admin.Blocked{}, "Attempt": admin.Attempt{},
	"InFlight": admin.InFlight{}, "EventGroup": admin.EventGroup{}, "Scheduled": admin.Scheduled{}, "SeekPlan": admin.SeekPlan{}, "SeekGap": admin.SeekGap{},
	"TrimPlan": admin.TrimPlan{}, "TopicUsage": admin.TopicUsage{}, "TopicRemoval": admin.TopicRemoval{}, "TopicCompaction": admin.TopicCompaction{}, "TopicSnapshots": admin.TopicSnapshots{}, "SnapshotInfo": admin.SnapshotInfo{}, "OvertakenGroup": admin.OvertakenGroup{}, "EraseResult": admin.EraseResult{},
	"SettingsPlan": admin.SettingsPlan{}, "TopicLoss": admin.TopicLoss{}, "IdleGroup": admin.IdleGroup{},
	"TopicIdle": admin.TopicIdle{}, "EndedGroup": admin.EndedGroup{}, "GroupIdle": admin.GroupIdle{},
	"Trace": admin.Trace{}, "TraceNode": admin.TraceNode{}, "TraceEdge": admin.TraceEdge{}, "Place": eventhub.Place{},
	"DeadLetter": admin.DeadLetter{}, "RedriveMark": admin.RedriveMark{}, "RedriveResult": admin.RedriveResult{},
	"TopicSettings": admin.TopicSettings{}, "SettingsSource": admin.SettingsSource{},
	"SettingsEntry": admin.SettingsEntry{}, "EffectiveSettings": admin.EffectiveSettings{},
}

// TestFields: each of them has the members that its schema has, and what is always
// there is required.
func TestFields(t *testing.T) {
	for name, v := range shown {
		var all, always []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "" || tag == "-" {
				continue
			}
			all = append(all, tag)
			if options == "" {
				always = append(always, tag)
			}
		}
		if name == "Event" { // in the log it has these, a new one need not
			always = append(always, "offset", "id", "ts")
		}
		schema := at(t, apidoc.OpenAPI, "components/schemas/"+name).(map[string]any)
		var listed, required []string
		for member := range schema["properties"].(map[string]any) {
			listed = append(listed, member)
		}
		if schema["required"] != nil {
			required = texts(t, schema["required"])
		}
		for _, list := range [][]string{all, always, listed, required} {
			slices.Sort(list)
		}
		if !slices.Equal(listed, all) {
			t.Errorf("%s has %q; its schema has %q", name, all, listed)
		}
		if !slices.Equal(required, always) {
			t.Errorf("%s always has %q; its schema requires %q", name, always, required)
		}
	}
}

// TestAllTypesAreShown: no type of the root package that has a form in JSON is left
// out above.
func TestAllTypesAreShown(t *testing.T) {
	known := make(map[string]bool)
	for _, v := range shown {
		known[reflect.TypeOf(v).Name()] = true
	}
	eachDeclaration(t, "..", func(spec ast.Spec) {
		typ, ok := spec.(*ast.TypeSpec)
		if !ok {
			return
		}
		structure, ok := typ.Type.(*ast.StructType)
		if !ok || known[typ.Name.Name] {
			return
		}
		for _, f := range structure.Fields.List {
			if f.Tag != nil && strings.Contains(f.Tag.Value, `json:"`) {
				t.Errorf("%s has names in JSON and no schema that is compared with it", typ.Name.Name)
				return
			}
		}
	})
}

// eachDeclaration visits what the package in dir declares, tests apart.
func eachDeclaration(t *testing.T, dir string, visit func(ast.Spec)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no Go files: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if general, ok := d.(*ast.GenDecl); ok {
				for _, spec := range general.Specs {
					visit(spec)
				}
			}
		}
	}
}

// constants returns the values of the constants of a type of text, sorted.
func constants(t *testing.T, dir, typ string) []string {
	t.Helper()
	var all []string
	eachDeclaration(t, dir, func(spec ast.Spec) {
		v, ok := spec.(*ast.ValueSpec)
		if !ok {
			return
		}
		if of, ok := v.Type.(*ast.Ident); !ok || of.Name != typ {
			return
		}
		for _, value := range v.Values {
			text, err := strconv.Unquote(value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
	})
	slices.Sort(all)
	return all
}

// TestCodes: both documents have the codes of the root package.
func TestCodes(t *testing.T) {
	want := constants(t, "..", "Code")
	for name, doc := range map[string]apidoc.Document{"openapi": apidoc.OpenAPI, "asyncapi": apidoc.AsyncAPI} {
		got := texts(t, at(t, doc, "components/schemas/Code/enum"))
		slices.Sort(got)
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s has the codes %q; those of the protocol are %q", name, got, want)
		}
	}
}

// TestFrames: the messages of the WebSocket are the frames of package wire.
func TestFrames(t *testing.T) {
	want := constants(t, filepath.Join("..", "wire"), "Op")
	var got []string
	for name := range at(t, apidoc.AsyncAPI, "components/messages").(map[string]any) {
		got = append(got, at(t, apidoc.AsyncAPI, "components/messages/"+name+"/payload/properties/op/const").(string))
	}
	slices.Sort(got)
	if got = slices.Compact(got); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the messages are of %q; the frames are %q", got, want)
	}
}

// TestCloseCodes: the table has those of package wire.
func TestCloseCodes(t *testing.T) {
	table := at(t, apidoc.AsyncAPI, "info/description").(string)
	rows := 0
	eachDeclaration(t, filepath.Join("..", "wire"), func(spec ast.Spec) {
		v, ok := spec.(*ast.ValueSpec)
		if ok && strings.HasPrefix(v.Names[0].Name, "Close") {
			rows++
			if code := v.Values[0].(*ast.BasicLit).Value; strings.Count(table, "| "+code+" |") != 1 {
				t.Errorf("%s, %s, is not in the table", v.Names[0].Name, code)
			}
		}
	})
	if listed := strings.Count(table, "\n| 1"); listed != rows || rows == 0 {
		t.Errorf("the table has %d codes; there are %d", listed, rows)
	}
}

// TestLimits: numbers that the code has a name for are the same there.
func TestLimits(t *testing.T) {
	const schemas, messages = "components/schemas/", "components/messages/"
	start := eventhub.GroupOptions{Topic: "t", Group: "g"}.WithDefaults()
	for _, tt := range []struct {
		doc  apidoc.Document
		path string
		want int64
	}{
		{apidoc.OpenAPI, schemas + "Topic/maxLength", eventhub.MaxTopicBytes},
		{apidoc.OpenAPI, schemas + "Offset/maximum", eventhub.MaxOffset},
		{apidoc.OpenAPI, schemas + "Key/maxLength", eventhub.MaxKeyBytes},
		{apidoc.OpenAPI, schemas + "SID/maxLength", eventhub.MaxSIDBytes},
		{apidoc.OpenAPI, schemas + "Headers/maxProperties", eventhub.MaxHeaders},
		{apidoc.OpenAPI, schemas + "Headers/additionalProperties/maxLength", eventhub.MaxHeaderBytes},
		{apidoc.OpenAPI, schemas + "Tags/maxItems", eventhub.MaxTags},
		{apidoc.OpenAPI, schemas + "Tags/items/maxLength", eventhub.MaxTagBytes},
		{apidoc.OpenAPI, schemas + "CausedBy/maxItems", eventhub.MaxCausedBy},
		{apidoc.OpenAPI, schemas + "DelayMs/maximum", eventhub.MaxDelay.Milliseconds()},
		{apidoc.OpenAPI, schemas + "WaitFor/maxItems", eventhub.MaxWaitFor},
		{apidoc.OpenAPI, schemas + "WaitMs/maximum", eventhub.MaxWait.Milliseconds()},
		{apidoc.OpenAPI, schemas + "FilterObject/properties/cel/maxLength", eventhub.MaxFilterBytes},
		{apidoc.OpenAPI, schemas + "AckTimeoutMs/minimum", eventhub.MinAckTimeout.Milliseconds()},
		{apidoc.OpenAPI, schemas + "AckTimeoutMs/maximum", eventhub.MaxAckTimeout.Milliseconds()},
		{apidoc.OpenAPI, schemas + "AckTimeoutMs/default", eventhub.DefaultAckTimeout.Milliseconds()},
		{apidoc.OpenAPI, schemas + "MaxAttempts/default", eventhub.DefaultMaxAttempts},
		{apidoc.OpenAPI, schemas + "Backoff/properties/min_ms/default", eventhub.DefaultMinBackoff.Milliseconds()},
		{apidoc.OpenAPI, schemas + "Backoff/properties/max_ms/default", eventhub.DefaultMaxBackoff.Milliseconds()},
		{apidoc.OpenAPI, schemas + "Leases/maxItems", wire.MaxRefs},
		{apidoc.OpenAPI, schemas + "Trace/properties/nodes/maxItems", admin.MaxTraceNodes},
		{apidoc.OpenAPI, schemas + "TraceNode/properties/distance/maximum", admin.MaxTraceDepth},
		{apidoc.OpenAPI, schemas + "DeadLetter/properties/marks/maxItems", admin.MaxRedriveMarks},
		{apidoc.OpenAPI, schemas + "RedriveResult/properties/samples/maxItems", admin.RedriveSamples},
		{apidoc.OpenAPI, "components/parameters/limit/schema/maximum", admin.MaxPage},
		{apidoc.AsyncAPI, schemas + "SubscribeOptions/properties/topics/maxItems", eventhub.MaxPatterns},
		{apidoc.AsyncAPI, schemas + "SubscribeOptions/properties/batch_size/default", int64(start.BatchSize)},
		{apidoc.AsyncAPI, schemas + "SubscribeOptions/properties/max_in_flight/default", int64(start.MaxInFlight)},
		{apidoc.AsyncAPI, messages + "publishBatch/payload/properties/events/maxItems", wire.MaxEvents},
		{apidoc.AsyncAPI, messages + "ackAndPublish/payload/properties/publish/maxItems", wire.MaxEvents},
		{apidoc.AsyncAPI, messages + "ack/payload/properties/ids/maxItems", wire.MaxRefs},
		{apidoc.AsyncAPI, messages + "auth/payload/properties/corr/maxLength", wire.MaxCorrBytes},
		{apidoc.AsyncAPI, messages + "authenticated/payload/properties/protocol/const", wire.ProtocolVersion},
	} {
		if got := at(t, tt.doc, tt.path).(float64); int64(got) != tt.want {
			t.Errorf("%s is %v; it is %d", tt.path, got, tt.want)
		}
	}
}

// TestSourcesAreUsed: no shared schema is left that neither document refers to.
func TestSourcesAreUsed(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("source", "schemas.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	used := at(t, apidoc.OpenAPI, "components/schemas").(map[string]any)
	for name := range at(t, apidoc.AsyncAPI, "components/schemas").(map[string]any) {
		used[name] = true
	}
	for line := range strings.Lines(string(source)) {
		if name, ok := strings.CutSuffix(line, ":\n"); ok && line[0] != ' ' && used[name] == nil {
			t.Errorf("schema %s is not used", name)
		}
	}
}

// TestETags: a tag is quoted, and another text has another one.
func TestETags(t *testing.T) {
	one, other := apidoc.OpenAPI.ETag, apidoc.AsyncAPI.ETag
	if text, err := strconv.Unquote(one); err != nil || len(text) < 16 || one == other {
		t.Errorf("the tags are %s and %s", one, other)
	}
}
