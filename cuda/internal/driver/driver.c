//go:build cgo && linux

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

struct pb_table pb_driver;

// This is the type of cuGetProcAddress_v2 of CUDA 12.0. The parameters are symbol, out, version, flags and status.
typedef CUresult (*get_proc_address)(const char *, void **, int, uint64_t, int *);

static void *find(void *lib, get_proc_address get, const char *name, const char *symbol, int version) {
	void *fn = NULL;
	int found = 0; // CU_GET_PROC_ADDRESS_SUCCESS
	if (get != NULL && get(name, &fn, version, 0, &found) == CUDA_SUCCESS && found == 0 && fn != NULL)
		return fn;
	return dlsym(lib, symbol);
}

int pb_load(char *why, size_t size) {
	// The process never closes the library, because the driver starts threads
	// that run code of the library.
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		const char *reason = dlerror();
		snprintf(why, size, "%s", reason != NULL ? reason : "libcuda.so.1 cannot be opened");
		return -1;
	}
	get_proc_address get = (get_proc_address)dlsym(lib, "cuGetProcAddress_v2");
#define X(name, suffix, version, params) \
	*(void **)&pb_driver.name = find(lib, get, #name, #name #suffix, version);
	PB_DRIVER_CALLS(X)
#undef X
	if (pb_driver.cuInit == NULL || pb_driver.cuDriverGetVersion == NULL) {
		snprintf(why, size, "libcuda.so.1 has no cuInit and cuDriverGetVersion");
		return -1;
	}
	return 0;
}

const char *pb_call_name(int call) {
	static const char *const names[] = {
		"",
#define X(name, suffix, version, params) #name,
		PB_DRIVER_CALLS(X)
#undef X
	};
	if (call < 0 || (size_t)call >= sizeof(names) / sizeof(names[0]))
		return "";
	return names[call];
}
