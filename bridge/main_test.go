package bridge

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childRole names what a process is that a test starts from its own binary; children has them all.
const childRole = "POOLBRIDGE_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		if err := children[role](); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
