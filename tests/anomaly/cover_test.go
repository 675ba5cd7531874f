package anomaly

import (
	"log"
	"os"
	"runtime/coverage"
)

// coverDir is where processes that tests start leave what they reached, if that is measured: see tests/coverage.
const coverDir = "POOLBRIDGE_TEST_COVERDIR"

// leaveCoverage is called at the end of such a process.
func leaveCoverage() {
	dir := os.Getenv(coverDir)
	if dir == "" {
		return
	}
	if err := coverage.WriteMetaDir(dir); err != nil {
		log.Print(err)
	}
	if err := coverage.WriteCountersDir(dir); err != nil {
		log.Print(err)
	}
}
