// Faults on demand.
#include "checks.h"

#include <unistd.h>

static void nth(void) {
    CUdeviceptr p;
    start(0);
    OK(cuMemAlloc_v2(&p, 16));
    OK(cuMemAlloc_v2(&p, 16));
    RESULT(cuMemAlloc_v2(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&p, 16));
}

static void every(void) {
    CUdeviceptr p;
    start(0);
    for (int i = 1; i <= 9; i++) RESULT(cuMemAlloc_v2(&p, 16), i % 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static void after(void) {
    CUdeviceptr p;
    start(0);
    OK(cuMemAlloc_v2(&p, 16));
    for (int i = 0; i < 2; i++) RESULT(cuMemAlloc_v2(&p, 16), CUDA_ERROR_UNKNOWN);
    OK(cuMemAlloc_v2(&p, 16));
}

static void sometimes(void) {
    int hits = 0;
    size_t a, b;
    start(0);
    for (int i = 0; i < 1000; i++) hits += cuMemGetInfo_v2(&a, &b) == CUDA_ERROR_DEINITIALIZED;
    EXPECT(hits > 30 && hits < 80);
    printf("     %d of 1000\n", hits);
}

static void any_call(void) {
    int n;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    RESULT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuDeviceGetCount(&n));
}

static void slow(void) {
    start(0);
    double before = seconds();
    OK(cuCtxSynchronize());
    EXPECT(seconds() - before > 0.099);
}

static void sticky(void) {
    CUdeviceptr p;
    CUstream s;
    start(0);
    OK(cuStreamCreate(&s, 0));
    RESULT(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    RESULT(cuMemAlloc_v2(&p, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    RESULT(cuStreamQuery(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxSetCurrent(NULL));
    start(1);
    OK(cuMemAlloc_v2(&p, 16));
}

static void write_control(const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/control", folder);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static void control(void) {
    CUdeviceptr p;
    start(0);
    OK(cuMemAlloc_v2(&p, 16));
    write_control("# from now on\ncall=cuMemAlloc error=OUT_OF_MEMORY\n");
    RESULT(cuMemAlloc_v2(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    write_control("# from now on\ncall=cuMemAlloc error=INVALID_VALUE\n");
    RESULT(cuMemAlloc_v2(&p, 16), CUDA_ERROR_INVALID_VALUE);
    write_control("");
    OK(cuMemAlloc_v2(&p, 16));
}

static void lost(void) {
    CUdeviceptr p, q;
    CUcontext ctx;
    start(1);
    OK(cuMemAlloc_v2(&q, 16));
    start(0);
    OK(cuMemAlloc_v2(&p, 16));
    write_control("device=0 lost\n");
    RESULT(cuMemAlloc_v2(&p, 16), CUDA_ERROR_UNKNOWN);
    RESULT(cuStreamSynchronize(NULL), CUDA_ERROR_UNKNOWN);
    RESULT(cuDevicePrimaryCtxRetain(&ctx, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    start(1);
    OK(cuMemAlloc_v2(&q, 16));
    write_control("");
    start(1);
    RESULT(cuDevicePrimaryCtxRetain(&ctx, 0), CUDA_ERROR_UNKNOWN); // the device stays lost in this process
}

static void other_program(void) {
    CUdeviceptr p;
    start(0);
    OK(cuMemAlloc_v2(&p, 16));
}

const struct check fault_checks[] = {
    {"the nth call fails", "SIMCUDA_FAULTS=call=cuMemAlloc nth=3 error=CUDA_ERROR_OUT_OF_MEMORY", nth, NULL, 0},
    {"every third call fails", "SIMCUDA_FAULTS=call=cuMemAlloc every=3 error=INVALID_VALUE", every, NULL, 0},
    {"two calls after the first fail", "SIMCUDA_FAULTS=call=cuMemAlloc after=1 times=2 error=UNKNOWN", after, NULL, 0},
    {"some calls fail", "SIMCUDA_FAULTS=call=cuMemGetInfo probability=0.05 seed=7 error=DEINITIALIZED", sometimes, NULL, 0},
    {"any call fails", "SIMCUDA_FAULTS=call=* nth=3 error=NOT_SUPPORTED", any_call, NULL, 0},
    {"a call is slow", "SIMCUDA_FAULTS=call=cuCtxSynchronize delay_ms=100", slow, NULL, 0},
    {"an illegal address sticks", "SIMCUDA_FAULTS=call=cuStreamSynchronize nth=1 error=ILLEGAL_ADDRESS", sticky, NULL, 0},
    {"the control file changes at run time", "SIMCUDA_CONTROL=@/control", control, NULL, 0},
    {"a device falls off the bus", "SIMCUDA_CONTROL=@/control", lost, NULL, 0},
    {"a rule for another program", "SIMCUDA_FAULTS=call=cuMemAlloc program=poolsvc error=UNKNOWN", other_program, NULL, 0},
    {0},
};
