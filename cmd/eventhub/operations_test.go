package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// machine is a directory that stands for a machine with the hub as a service: what the page
// names below / is below it.
type machine struct {
	t   *testing.T
	dir string
	// addrs are the addresses of the test, by those that the page names.
	addrs map[string]string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), addrs: make(map[string]string)}
	for _, addr := range []string{"127.0.0.1:8090", "127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:18090", "127.0.0.1:18081", "127.0.0.1:18082"} {
		m.addrs[addr] = freePort(t)
	}
	for _, dir := range []string{"usr/bin", "var/lib/eventhub", "var/lib/eventhub-backup", "etc/ssl", "work"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"usr/bin/eventhub", "work/eventhub-new"} {
		if err := os.Link(binary, filepath.Join(m.dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// services stands for systemd: the hub, and its backup.
const services = `ready() { for _ in $(seq 600); do eventhub health >/dev/null 2>&1 && return; sleep 0.1; done; echo the hub is not ready; cat ../hub.log; exit 1; }
systemctl() {
	case "$*" in
	"start eventhub") eventhub serve --store ../var/lib/eventhub 2>>../hub.log & echo $! >../hub.pid; ready ;;
	"stop eventhub") kill $(cat ../hub.pid); while kill -0 $(cat ../hub.pid) 2>/dev/null; do wait $(cat ../hub.pid) || true; done ;;
	"enable --now eventhub-backup.timer") ;;
	"start eventhub-backup.service") ( cd ../var/lib/eventhub-backup; eval "$BACKUP" ) ;;
	*) echo "systemctl $*?"; exit 1 ;;
	esac
}
chown() { [ "$*" = "-R eventhub: $ROOT/var/lib/eventhub" ]; }
curl() { command curl -sS --fail-with-body --cacert ../etc/ssl/hub.example.pem "$@"; }
trap 'kill -9 $(cat ../hub.pid) 2>/dev/null' EXIT
set -e
systemctl start eventhub
eventhub pub orders 1; eventhub pub orders 2
eventhub sub orders -g billing --from earliest -c 1
`

// run runs the blocks of a page with that info on the machine, and returns what they print.
func (m *machine) run(info string, env ...string) string {
	m.t.Helper()
	blocks, _ := parts("docs/operations.md", readPages(m.t)["docs/operations.md"])
	blocks = slices.DeleteFunc(blocks, func(s snippet) bool { return s.info != info })
	if len(blocks) == 0 {
		m.t.Fatalf("the page has no block of %s", info)
	}
	var script strings.Builder
	script.WriteString(services)
	for _, s := range blocks {
		script.WriteString(m.here(s.text))
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), watchdog)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir = filepath.Join(m.dir, "work")
	shell.Env = append(cleanEnv(), "PATH="+filepath.Join(m.dir, "usr/bin")+string(os.PathListSeparator)+os.Getenv("PATH"), "ROOT="+m.dir,
		"EVENTHUB_WS="+m.addrs["127.0.0.1:8090"], "EVENTHUB_HTTP="+m.addrs["127.0.0.1:8081"], "EVENTHUB_OPS="+m.addrs["127.0.0.1:8082"],
		"EVENTHUB_URL=ws://"+m.addrs["127.0.0.1:8090"])
	shell.Env = append(shell.Env, env...)
	shell.WaitDelay = watchdog
	out, err := shell.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}

// here puts what a text names where it is on the machine.
func (m *machine) here(text string) string {
	var pairs []string
	for _, root := range []string{"/usr/bin/", "/var/lib/", "/etc/ssl/"} {
		pairs = append(pairs, root, m.dir+root)
	}
	for page, test := range m.addrs {
		pairs = append(pairs, page, test)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// has checks that the commands print some things, as often as given.
func has(t *testing.T, said string, want map[string]int) {
	t.Helper()
	for text, n := range want {
		if got := len(regexp.MustCompile(text).FindAllString(said, -1)); got != n {
			t.Errorf("the commands print %q %d times; want %d:\n%s", text, got, n, said)
		}
	}
}

// TestUpgradeOfPage: the hub is upgraded, and goes back both ways.
func TestUpgradeOfPage(t *testing.T) {
	m := newMachine(t)
	said := m.run("sh upgrade")
	has(t, said, map[string]int{`(?m)^verified 1 topic, 2 events, `: 1, `restored \d+ files into`: 1,
		`offsets 1 to 10\n`: 2, `offsets 11 to 20\n`: 1}) // the newer store goes on; the older one knows nothing of it
	if _, err := os.Stat(filepath.Join(m.dir, "var/lib/eventhub-newer/FORMAT")); err != nil {
		t.Error(err)
	}
}

// TestBackupOfPage: the unit in deploy makes a backup, keeps the last 14, and the drill
// restores the newest.
func TestBackupOfPage(t *testing.T) {
	m := newMachine(t)
	unit, err := os.ReadFile(filepath.Join(source, "deploy/systemd/eventhub-backup.service"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(string(unit))[1]
	for n := range 20 { // nights before
		if err := os.Mkdir(filepath.Join(m.dir, "var/lib/eventhub-backup", "200001"+string(rune('A'+n))+"Z"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	said := m.run("sh backup", "BACKUP="+strings.NewReplacer("$$", "$", "%%", "%").Replace(line))
	has(t, said, map[string]int{`(?m)^backed up \d+ files`: 1, `(?m)^200001[H-T]Z$`: 13, `(?m)^200001[A-G]Z$`: 0, `(?m)^20\d{6}T\d{6}Z$`: 1,
		`restored \d+ files into`: 1, `(?m)^orders +1 +2 +1 `: 1, `(?m)^orders +billing +1 +2 `: 1})
	if _, err := os.Stat(filepath.Join(m.dir, "work/drill")); !os.IsNotExist(err) {
		t.Errorf("the drill leaves something: %v", err)
	}
}

// certificate writes a certificate for hub.example that signs itself.
func (m *machine) certificate() (path string) {
	m.t.Helper()
	path = filepath.Join(m.dir, "etc/ssl/hub.example.pem")
	writeCertificate(m.t, path, strings.TrimSuffix(path, "pem")+"key")
	return path
}

// writeCertificate writes a certificate for localhost that signs itself, and its key.
func writeCertificate(t *testing.T, cert, private string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hub.example"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, private: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProxyOfPage: nginx with the configuration of the page gives a hub TLS.
func TestProxyOfPage(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx = "/usr/sbin/nginx" // which is not in the path of all users
	}
	m := newMachine(t)
	cert, addr := m.certificate(), freePort(t)
	_, port, _ := net.SplitHostPort(addr)
	m.addrs["wss://hub.example"], m.addrs["https://hub.example"] = "wss://localhost:"+port, "https://localhost:"+port
	m.addrs["listen 443 ssl"] = "listen " + addr + " ssl"
	blocks, _ := parts("docs/operations.md", readPages(t)["docs/operations.md"])
	i := slices.IndexFunc(blocks, func(s snippet) bool { return s.info == "nginx" })
	config := "daemon off; master_process off; pid nginx.pid; error_log stderr warn; events {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += kind + "_temp_path " + kind + ";\n"
	}
	if err := os.WriteFile(filepath.Join(m.dir, "nginx.conf"), []byte(config+m.here(blocks[i].text)+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := exec.Command(nginx, "-p", m.dir, "-c", "nginx.conf", "-e", "stderr")
	proxy.Stderr = os.Stderr
	if err := proxy.Start(); err != nil {
		t.Fatalf("%v: install nginx, as scripts/test does", err)
	}
	defer func() { _, _ = proxy.Process.Kill(), proxy.Wait() }()
	for late := time.After(watchdog); ; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			break
		}
		select {
		case <-late:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, "work/hub.token"), []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := m.run("sh proxy", "EVENTHUB_AUTH_TOKEN_FILE=hub.token", "EVENTHUB_TOKEN_FILE=hub.token", "SSL_CERT_FILE="+cert)
	has(t, said, map[string]int{`(?m)^deliver .* 10 events$`: 1, `(?m)^orders +3 `: 1, `"topic":"orders","first_offset":1,"head":3`: 1})
}
