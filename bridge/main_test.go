package bridge

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childRole is the name of an environment variable. Its value is the role of a process that a test starts from the test binary; the
// variable `children` has all roles.
const childRole = "POOLBRIDGE_TEST_CHILD"

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // a benchmark measures without checks
		_ = os.Setenv("POOLBRIDGE_CHECK_LEASES", "1") // for the processes that tests start, too
	}
	if role := os.Getenv(childRole); role != "" {
		if err := children[role](); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
