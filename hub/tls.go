package hub

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"eventhub/internal/livefile"
	"eventhub/internal/measure"
)

// The settings of the files, as users know them.
const (
	certSetting = "tls_cert_file"
	keySetting  = "tls_key_file"
)

// certificate is what the listeners present. It is read again when its files change; a pair
// that can not be used leaves the one before.
type certificate struct {
	files *livefile.Files
	pair  atomic.Pointer[tls.Certificate]
}

// certificate returns that of the configuration, not read yet, or nil where there is none.
func (c *Config) certificate(log *slog.Logger) *certificate {
	if !c.hasTLS() {
		return nil
	}
	cert := new(certificate)
	cert.files = livefile.New(log, func(contents [][]byte) error {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return fmt.Errorf("%s and %s are no certificate and its key: %w", c.TLSCertFile, c.TLSKeyFile, err)
		}
		cert.pair.Store(&pair)
		return nil
	}, livefile.File{Setting: certSetting, Path: c.TLSCertFile}, livefile.File{Setting: keySetting, Path: c.TLSKeyFile})
	return cert
}

// hasTLS reports whether listeners speak TLS.
func (c *Config) hasTLS() bool { return c.TLSCertFile != "" && c.TLSKeyFile != "" }

// TLSAt reports whether the listener of an address speaks TLS. That of operations alone does
// not on loopback: probes and scrapers of the machine ask there, by an address that no
// certificate has.
func (c *Config) TLSAt(addr string) bool {
	if !c.hasTLS() {
		return false
	}
	if addr != c.OpsAddr || addr == c.WSAddr || addr == c.HTTPAddr {
		return true
	}
	host, err := checkAddr(addr)
	return err != nil || !isLoopback(host)
}

// validateTLS returns what is wrong with the files.
func (c *Config) validateTLS() error {
	var err error
	switch {
	case c.TLSCertFile == "" && c.TLSKeyFile != "":
		err = errors.New(keySetting + ": it needs " + certSetting)
	case c.TLSKeyFile == "" && c.TLSCertFile != "":
		err = errors.New(certSetting + ": it needs " + keySetting)
	case c.hasTLS():
		err = c.certificate(nil).files.Open()
	}
	return err
}

// config is that of the listeners. They speak HTTP/1.1 alone: a WebSocket needs the connection for
// itself.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,

		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
	}
}

// measure returns how reading the files again went, and how long the certificate is good.
func (c *certificate) measure() measure.Source {
	m := c.files.Measure()
	m.Expires = c.pair.Load().Leaf.NotAfter
	return m
}
