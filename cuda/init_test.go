package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// A process opens the driver library only once. So each test of this file
// starts the test program again as a child process, which finds another driver
// library, or none.

const roleVariable = "POOLBRIDGE_TEST_ROLE"

// play prints the error of Init: the name of its Result, and its text.
func play(role string) int {
	err := cuda.Init()
	if role == "twice" && err != nil {
		err = cuda.Init()
	}
	var e *cuda.Error
	switch {
	case err == nil:
		_, err = cuda.DeviceCount()
		if err == nil || !errors.As(err, &e) {
			fmt.Println("no error", err)
			return 0
		}
		fallthrough
	case errors.As(err, &e):
		fmt.Println(e.Result.Name(), e)
	default:
		fmt.Println("untyped", err)
	}
	return 0
}

// initWith returns the output of play in a process whose libcuda.so.1 is in dir.
func initWith(t *testing.T, dir, role string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "LD_LIBRARY_PATH="+dir, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "it must not crash: %s", out)
	return string(out)
}

// driverOf compiles a libcuda.so.1 and returns its folder.
func driverOf(t *testing.T, source string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
	dir := t.TempDir()
	c := filepath.Join(dir, "driver.c")
	require.NoError(t, os.WriteFile(c, []byte(source), 0o600))
	out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), c).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

func TestALibraryThatCannotBeOpenedIsErrNoDriver(t *testing.T) {
	// The empty file takes the place of the real driver library, if this
	// machine has one.
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), nil, 0o600))
	for _, role := range []string{"once", "twice"} {
		assert.True(t, strings.HasPrefix(initWith(t, dir, role), "NO_DRIVER cuda: dlopen: "), role)
	}
}

func TestALibraryThatIsNoDriverIsErrNoDriver(t *testing.T) {
	skipWithoutCgo(t)
	dir := driverOf(t, `int nothing;`)
	assert.Contains(t, initWith(t, dir, "once"), "NO_DRIVER cuda: dlopen: NO_DRIVER: no CUDA driver (libcuda.so.1 has no cuInit")
}

func TestAnOldDriverIsErrDriverTooOld(t *testing.T) {
	skipWithoutCgo(t)
	dir := driverOf(t, `int cuInit(unsigned f) { return 0; } int cuDriverGetVersion(int *v) { *v = 11080; return 0; }`)
	assert.Contains(t, initWith(t, dir, "once"), "it speaks CUDA 11.8, needed is 12.0")
}

func TestAMissingCallIsErrSymbolNotFoundAndNotACrash(t *testing.T) {
	skipWithoutCgo(t)
	dir := driverOf(t, `int cuInit(unsigned f) { return 0; } int cuDriverGetVersion(int *v) { *v = 12040; return 0; }`)
	assert.Contains(t, initWith(t, dir, "once"), "SYMBOL_NOT_FOUND cuda: cuDeviceGetCount: ")
}

func TestADriverWithoutGPUsIsErrNoDevice(t *testing.T) {
	skipWithoutCgo(t)
	dir := driverOf(t, `int cuInit(unsigned f) { return 100; } int cuDriverGetVersion(int *v) { *v = 13000; return 0; }`)
	assert.Contains(t, initWith(t, dir, "twice"), "CUDA_ERROR_NO_DEVICE cuda: cuInit: ")
}

func TestCallsAreFoundThroughCuGetProcAddressFirst(t *testing.T) {
	skipWithoutCgo(t)
	dir := driverOf(t, `
		#include <stdint.h>
		#include <string.h>
		int cuInit(unsigned f) { return 0; }
		int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
		int cuDeviceGetCount(int *n) { return 46; } // must not be found
		static int count(int *n) { return 803; }
		int cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status) {
			if (strcmp(name, "cuDeviceGetCount") == 0 && version == 2000 && flags == 0) { *fn = (void *)count; *status = 0; return 0; }
			*fn = 0; *status = 1; return 500;
		}`)
	assert.Contains(t, initWith(t, dir, "once"), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH cuda: cuDeviceGetCount: ")
}

func TestInitMayBeRepeated(t *testing.T) {
	device(t)
	require.NoError(t, cuda.Init())
	v, err := cuda.DriverVersion()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, v, cuda.MinDriverVersion)
}
