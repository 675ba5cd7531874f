package pattern

import (
	"fmt"
	"os"
	"testing"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestMain(m *testing.M) {
	cuda.TraceObjects()
	status := m.Run()
	if left := cuda.OpenObjects(); status == 0 && len(left) != 0 {
		fmt.Fprintln(os.Stderr, "not closed:", left)
		status = 1
	}
	os.Exit(status)
}
