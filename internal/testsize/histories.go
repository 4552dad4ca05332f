package testsize

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// mostAwake is how long one history may take, which takes some milliseconds: one that
// goes round in circles, or waits for a lock that nobody gives back, has no other end.
const mostAwake = 2 * time.Minute

// Histories is rapid.Check with n random histories, unless -rapid.checks or RAPID_CHECKS says
// how many. It draws the seed itself, so that a history which does not come to rest names it
// too: Histories panics then.
func Histories(t *testing.T, n int, check func(*rapid.T)) {
	t.Helper()
	give(t, "rapid.checks", strconv.Itoa(n))
	give(t, "rapid.nofailfile", "true")
	give(t, "rapid.seed", strconv.FormatUint(rand.Uint64()>>1|1, 10))
	history := 0
	rapid.Check(t, func(rt *rapid.T) {
		history++
		awake := time.AfterFunc(mostAwake, func() {
			panic(fmt.Sprintf("history %d of %s with -rapid.seed=%s does not come to rest", history, t.Name(), flag.Lookup("rapid.seed").Value))
		})
		defer awake.Stop()
		check(rt)
	})
}

// Checks has rapid.Check try that many cases in this test, unless -rapid.checks or
// RAPID_CHECKS says how many.
func Checks(t testing.TB, full, small int) {
	t.Helper()
	give(t, "rapid.checks", strconv.Itoa(Of(full, small)))
}

// give sets a flag of rapid for this test, unless the command line or rapid's environment
// variable for it has set it.
func give(t testing.TB, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	if _, ok := os.LookupEnv(strings.ToUpper(strings.ReplaceAll(name, ".", "_"))); ok || f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
}
