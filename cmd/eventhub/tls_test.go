package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandsOverTLS: commands reach a hub that speaks TLS by the certificate that they are
// told to trust, and by no other; its health shows without.
func TestCommandsOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "hub.pem"), filepath.Join(dir, "hub.key")
	writeCertificate(t, cert, key)
	other := filepath.Join(dir, "other.pem")
	writeCertificate(t, other, filepath.Join(dir, "other.key"))
	p := startHub(t, "--store", "memory:", "--auth-token", "s3cret", "--tls-cert-file", cert, "--tls-key-file", key)
	all := startHub(t, "--store", "memory:", "--auth-token", "s3cret", "--tls-cert-file", cert, "--tls-key-file", key, "--ws", "localhost:0", "--ops", "localhost:0")
	_, port, _ := strings.Cut(p.http, ":")
	wss, https := "wss://localhost:"+port, "https://localhost:"+port
	for _, tt := range []struct {
		env  []string
		args []string
		code int
		says string
	}{
		{nil, []string{"check", "--url", wss, "--ca-file", cert}, 0, "deliver"},
		{nil, []string{"pub", "orders", "1", "--url", https, "--ca-file", cert}, 0, ""},
		{[]string{"EVENTHUB_CA_FILE=" + cert, "EVENTHUB_URL=" + wss}, []string{"topic", "ls"}, 0, "orders"},
		{[]string{"EVENTHUB_CA_FILE=" + other, "EVENTHUB_URL=" + wss}, []string{"topic", "ls"}, 3, "certificate"},
		{nil, []string{"topic", "ls", "--url", wss}, 3, "certificate"},
		{nil, []string{"topic", "ls", "--url", wss, "--ca-file", filepath.Join(dir, "nowhere")}, 2, "CA file: open " + dir},
		{nil, []string{"topic", "ls", "--url", wss, "--ca-file", key}, 2, "hub.key has no certificate in PEM"},
		{nil, []string{"bench", "publish", "--url", wss, "--ca-file", cert, "--count", "100", "--warmup", "0s", "--connections", "2"}, 0, "100"},
		{nil, []string{"status", "--url", wss, "--ca-file", cert, "--ops", p.ops}, 0, "in memory"},
		{nil, []string{"status", "--url", "wss://" + all.ws, "--ca-file", cert, "--ops", all.ops}, 0, "in memory"},
		{nil, []string{"health", "--ops", p.ops}, 0, "ok"},
		{nil, []string{"health", "--ops", all.ops}, 0, "ok"},
	} {
		code, stdout, stderr := runBinary(t, append([]string{"EVENTHUB_TOKEN=s3cret"}, tt.env...), tt.args...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.says) {
			t.Errorf("%v %v: exit code %d, want %d and %q:\n%s%s", tt.env, tt.args, code, tt.code, tt.says, stdout, stderr)
		}
	}
	if code, _, stderr := runBinary(t, nil, "serve", "--store", "memory:", "--tls-cert-file", other, "--tls-key-file", key); code != exitUsage ||
		!strings.Contains(stderr, "private key does not match public key (tls_cert_file from flag --tls-cert-file, tls_key_file from flag --tls-key-file)") {
		t.Errorf("a pair that does not fit: exit code %d, %s", code, stderr)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, stderr := runBinary(t, nil, "config", "check", "--tls-cert-file", cert, "--tls-key-file", key); !strings.Contains(stderr, key+" holds a secret and every user of the machine can read it") {
		t.Errorf("a key that all can read: %s", stderr)
	}
}
