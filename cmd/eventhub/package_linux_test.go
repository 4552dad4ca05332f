package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// packaging is what scripts/package makes of the binary, as a release v1.2.3 would.
type packaging struct {
	dir   string
	files map[string][]byte
}

func packageBinary(t *testing.T) packaging {
	t.Helper()
	p := packaging{t.TempDir(), make(map[string][]byte)}
	cmd := exec.Command(filepath.Join("..", "..", "scripts", "package"), "linux", runtime.GOARCH, binary, p.dir)
	cmd.Env = cleanEnv("VERSION=v1.2.3", "SOURCE_DATE_EPOCH=1790000000", "COMPRESSION=1", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/package: %v\n%s", err, out)
	}
	for name := range filesBelow(t, p.dir) {
		content, err := os.ReadFile(p.dir + name)
		if err != nil {
			t.Fatal(err)
		}
		p.files[strings.TrimPrefix(name, "/")] = content
	}
	return p
}

// TestPackage: a release of the real binary has the archive, the SBOM and the
// Debian package that docs/install.md describes, and its commands run.
func TestPackage(t *testing.T) {
	p := packageBinary(t)
	name := "eventhub_v1.2.3_linux_" + runtime.GOARCH
	deb := "eventhub_1.2.3_" + runtime.GOARCH + ".deb"
	want := []string{deb, name + ".sbom.json", name + ".tar.gz"}
	if got := slices.Sorted(maps.Keys(p.files)); !slices.Equal(got, want) {
		t.Fatalf("a release has %q; want %q", got, want)
	}
	archiveHolds(t, p.files[name+".tar.gz"], name)
	sbomHolds(t, p.files[name+".sbom.json"])
	debHolds(t, filepath.Join(p.dir, deb))
	installDocRuns(t, p.dir)
}

// installPrelude lets a shell run the commands of docs/install.md without root, network
// or a build: files go below DESTDIR, and the binary of the tests is what is built.
const installPrelude = `
set -eux
export GOCACHE=$(go env GOCACHE) GOMODCACHE=$(go env GOMODCACHE)
export HOME=$SCRATCH/home DESTDIR=$SCRATCH/machine PATH=$SCRATCH/machine/usr/local/bin:$PATH
unset MAKEFLAGS MAKELEVEL MFLAGS
mkdir -p "$HOME" "$DESTDIR"
sudo() { "$@"; }
make() { [ "$1" = build ] || command make --no-print-directory -C "$SOURCE" "$@" BINARY="$BINARY"; }
install() { command install "${@:1:$#-1}" "$DESTDIR${*: -1}"; }
`

// installDocRuns runs the blocks of docs/install.md that have no prompt, in their order:
// those about a release in its directory.
func installDocRuns(t *testing.T, release string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	// What else a release has, here with what is not committed.
	prepare := `tar -C "$1" --exclude=./.git --exclude=./bin --exclude=./dist --exclude=node_modules --transform 's,^\.,eventhub-v1.2.3,' -cf - . | gzip -1 >eventhub_v1.2.3_source.tar.gz && sha256sum -- * >SHA256SUMS`
	before := exec.Command("sh", "-c", prepare, "sh", source)
	before.Dir = release
	if out, err := before.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(page, -1)
	if len(blocks) < 6 {
		t.Fatalf("docs/install.md has only %d blocks of commands", len(blocks))
	}
	script := installPrelude
	for _, b := range blocks {
		script += strings.ReplaceAll(string(b[1]), "_amd64", "_"+runtime.GOARCH)
	}
	hub := startHub(t, "--store", "memory:")
	cmd := exec.Command("bash", "-c", script+"./orders\n") // the program of the last block
	cmd.Dir = release
	cmd.Env = cleanEnv("SCRATCH="+t.TempDir(), "SOURCE="+source, "BINARY="+binary, "CGO_ENABLED=0", "EVENTHUB_URL=ws://"+hub.ws)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\npublished at offset 1\n") {
		t.Errorf("the commands of docs/install.md: %v\n%s", err, out)
	}
}

// archiveHolds: the archive has what people need, of root and with the time of the commit.
func archiveHolds(t *testing.T, archive []byte, top string) {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	modes := make(map[string]int64)
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1790000000 || !strings.HasPrefix(h.Name, top+"/") {
			t.Errorf("%s is of %d:%d, with time %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		modes[strings.TrimPrefix(h.Name, top+"/")] = h.Mode
	}
	for name, mode := range map[string]int64{
		"eventhub": 0o755, "README.md": 0o644, "CHANGELOG.md": 0o644, "THIRD_PARTY_LICENSES": 0o644, "docs/install.md": 0o644,
		"completion/eventhub.bash": 0o644, "completion/_eventhub": 0o644, "completion/eventhub.fish": 0o644,
		"deploy/systemd/eventhub.service": 0o644, "deploy/prometheus/alerts.yml": 0o644,
		"deploy/topics.yaml": 0o644, "deploy/deploy.go": 0,
	} {
		if modes[name] != mode {
			t.Errorf("%s has mode %o in the archive; want %o", name, modes[name], mode)
		}
	}
}

// sbomHolds: the SBOM names these bytes, and each module that the linker has put into
// them with its version, its sum and a licence.
func sbomHolds(t *testing.T, text []byte) {
	t.Helper()
	type component struct {
		Name, Version, PURL string
		Hashes              []struct{ Alg, Content string }
		Licenses            []struct{ License struct{ ID string } }
		Properties          []struct{ Name, Value string }
	}
	var sbom struct {
		Metadata   struct{ Component component }
		Components []component
	}
	if err := json.Unmarshal(text, &sbom); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(content)
	program := sbom.Metadata.Component
	if program.Name != "eventhub" || program.Version != "v1.2.3" || len(program.Hashes) != 1 || program.Hashes[0].Content != hex.EncodeToString(digest[:]) {
		t.Errorf("the SBOM is of %+v", program)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if len(sbom.Components) != len(info.Deps)+1 || sbom.Components[0].Name != "std" {
		t.Errorf("%d components, the first of them %s, for %d modules and the standard library", len(sbom.Components), sbom.Components[0].Name, len(info.Deps))
	}
	for _, m := range info.Deps {
		i := slices.IndexFunc(sbom.Components, func(c component) bool { return c.Name == m.Path && c.Version == m.Version })
		if i < 0 {
			t.Errorf("%s %s is missing", m.Path, m.Version)
			continue
		}
		if c := sbom.Components[i]; len(c.Licenses) == 0 || c.Licenses[0].License.ID == "" || len(c.Properties) != 1 || c.Properties[0].Value != m.Sum ||
			c.PURL != "pkg:golang/"+m.Path+"@"+m.Version {
			t.Errorf("%s is described as %+v; its sum is %s", m.Path, c, m.Sum)
		}
	}
}

// debHolds: the Debian package has these files with these modes, all of root, its
// settings are kept by an upgrade, and its service runs as the user of the package.
func debHolds(t *testing.T, deb string) {
	t.Helper()
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("dpkg-deb", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, line := range strings.Split(run("--contents", deb), "\n") {
		if !strings.Contains(line, " root/root ") {
			t.Errorf("not of root: %s", line)
		}
	}
	dir, control := t.TempDir(), t.TempDir()
	run("--extract", deb, dir)
	equalFiles(t, filesBelow(t, dir), map[string]fs.FileMode{
		"/usr/bin/eventhub":                                          0o755,
		"/usr/lib/systemd/system/eventhub.service":                   0o644,
		"/etc/eventhub/environment":                                  0o640,
		"/usr/share/bash-completion/completions/eventhub":            0o644,
		"/usr/share/zsh/vendor-completions/_eventhub":                0o644,
		"/usr/share/fish/vendor_completions.d/eventhub.fish":         0o644,
		"/usr/share/doc/eventhub/copyright":                          0o644,
		"/usr/share/doc/eventhub/changelog.gz":                       0o644,
		"/usr/share/doc/eventhub/NEWS.md.gz":                         0o644,
		"/usr/share/doc/eventhub/THIRD_PARTY_LICENSES.gz":            0o644,
		"/usr/share/doc/eventhub/examples/prometheus/alerts.yml":     0o644,
		"/usr/share/doc/eventhub/examples/prometheus/prometheus.yml": 0o644,
		"/usr/share/doc/eventhub/examples/grafana/eventhub.json":     0o644,
		"/usr/share/doc/eventhub/examples/topics.yaml":               0o644,
		"/usr/share/lintian/overrides/eventhub":                      0o644,
	})
	run("--control", deb, control)
	equalFiles(t, filesBelow(t, control), map[string]fs.FileMode{
		"/control": 0o644, "/conffiles": 0o644, "/md5sums": 0o644, "/postinst": 0o755, "/prerm": 0o755, "/postrm": 0o755,
	})
	for field, want := range map[string]string{"Package": "eventhub", "Version": "1.2.3", "Depends": "adduser"} {
		if got := run("--field", deb, field); got != want {
			t.Errorf("%s is %q; want %q", field, got, want)
		}
	}
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := read(control + "/conffiles"); got != "/etc/eventhub/environment\n" {
		t.Errorf("an upgrade keeps changes of %q", got)
	}
	unit := read(dir + "/usr/lib/systemd/system/eventhub.service")
	for _, line := range []string{"ExecStart=/usr/bin/eventhub serve --store %S/eventhub --log-format json", "User=eventhub", "Group=eventhub", "StateDirectory=eventhub"} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit of the package lacks %s", line)
		}
	}
	if strings.Contains(unit, "DynamicUser") {
		t.Error("the unit of the package has a user that exists only while the hub runs")
	}
	if out, err := exec.Command("sh", "-c", "cd '"+dir+"' && md5sum --check --quiet '"+control+"/md5sums'").CombinedOutput(); err != nil {
		t.Errorf("md5sums: %v\n%s", err, out)
	}
}

// TestDebianVersions: dpkg orders the versions as git made them.
func TestDebianVersions(t *testing.T) {
	versions := []struct{ version, want string }{
		{"0123abc", "0~20260921141320.0123abc"},
		{"v0.9.0", "0.9.0"},
		{"v1.2.3-rc1", "1.2.3~rc1"},
		{"v1.2.3-rc1-7-gabcdef0", "1.2.3~rc1+7.gabcdef0"},
		{"v1.2.3", "1.2.3"},
		{"v1.2.3-4-gabcdef0", "1.2.3+4.gabcdef0"},
		{"1.2.10", "1.2.10"},
	}
	before := ""
	for _, v := range versions {
		cmd := exec.Command(filepath.Join("..", "..", "scripts", "debian-version"))
		cmd.Env = cleanEnv("VERSION="+v.version, "SOURCE_DATE_EPOCH=1790000000")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		got := strings.TrimSpace(string(out))
		if got != v.want {
			t.Errorf("%s is %s for Debian; want %s", v.version, got, v.want)
		}
		if before != "" && exec.Command("dpkg", "--compare-versions", before, "lt", got).Run() != nil {
			t.Errorf("dpkg does not take %s for newer than %s", got, before)
		}
		before = got
	}
}
