package main

import (
	"os/exec"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdSent waits until a row of the outbox of EVENTHUB_OUTBOX is sent: sent ID
func cmdSent(ts *testscript.TestScript, _ bool, args []string) {
	alarm := time.Now().Add(watchdog)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		show := exec.Command(binary, "outbox", "show", args[0])
		show.Dir = ts.Getenv("WORK")
		show.Env = append(cleanEnv(), "EVENTHUB_OUTBOX="+ts.Getenv("EVENTHUB_OUTBOX"))
		said, err := show.CombinedOutput()
		if err == nil && strings.Contains(string(said), "\nStatus:    sent\n") {
			return
		}
		if time.Now().After(alarm) {
			ts.Fatalf("row %s is not sent: %v\n%s", args[0], err, said)
		}
		time.Sleep(wait) // a table notifies nobody of what becomes of a row
	}
}
