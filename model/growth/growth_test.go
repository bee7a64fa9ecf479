package growth

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// verdict takes what Check says of a target.
type verdict struct {
	testing.TB
	said []string
}

func (v *verdict) Helper() {}
func (v *verdict) Errorf(format string, args ...any) {
	v.said = append(v.said, fmt.Sprintf(format, args...))
}

// TestCheck: garbage is no growth, a store filled before the first measurement isn't either, and a leak is.
func TestCheck(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv(LogVariable, log)
	var w Watch
	v := &verdict{TB: t}
	var held [][]byte
	run := func(size int, hold bool) {
		for i := range Every {
			if i%(Every/10) == 0 {
				b := make([]byte, size)
				b[size/2] = 1
				if hold {
					held = append(held, b)
				}
			}
			w.Check(v)
		}
	}
	run(8<<20, true)  // 80 MiB, before the first measurement
	run(8<<20, false) // garbage
	run(1<<20, true)  // 10 MiB more
	if len(v.said) != 0 {
		t.Fatalf("said %q of a target that holds 10 MiB more than at first", v.said)
	}
	run(5<<20, true) // 60 MiB more
	if len(v.said) != 1 || !strings.Contains(v.said[0], "after 40000 executions") {
		t.Errorf("said %q of a target that holds 60 MiB more than at first", v.said)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n != 4 {
		t.Errorf("%d measurements in the log, want 4: %q", n, text)
	}
	if len(held) != 30 {
		t.Errorf("%d blocks", len(held))
	}
}
