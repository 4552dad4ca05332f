package mongotest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// build returns the path of the program. It is kept in the user's cache under a name that
// says what it was built of, because to compile it takes minutes, and to link it seconds,
// for every process of tests.
func build() (string, error) {
	dir, err := source()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version())
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "eventhub-test")
	program := filepath.Join(cache, fmt.Sprintf("ferretdb-%x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	return program, buildOnce(dir, cache, program)
}

// buildOnce builds the program unless another process has done so meanwhile.
func buildOnce(dir, cache, program string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which gives the lock back
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	part := program + ".part"
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", part, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mongotest: building FerretDB: %w: %s", err, out)
	}
	return os.Rename(part, program)
}
