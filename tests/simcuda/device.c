// The simulated devices. No property of a simulated device may look like real hardware, and above all not its name.
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE(dev) \
    if ((dev) < 0 || (dev) >= config.devices) return CUDA_ERROR_INVALID_DEVICE

// The first bytes of the UUID are the text "simulated". The last bytes are SIMCUDA_UUID (u) and the ordinal (n):
// GPU-73696d75-6c61-7465-6400-uuuuuuuu00nn.
void device_uuid(int ordinal, char uuid[16]) {
    memset(uuid, 0, 16);
    memcpy(uuid, "simulated", 9);
    for (int i = 0; i < 4; i++) uuid[10 + i] = (char)(config.uuid >> (24 - 8 * i));
    uuid[15] = (char)ordinal;
}

SIM_API CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
    ENTER(cuDeviceGet, NEED_INIT);
    if (!dev) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(ordinal);
    *dev = ordinal;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount, NEED_INIT);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = config.devices;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    ENTER(cuDeviceGetName, NEED_INIT);
    if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(dev);
    snprintf(name, (size_t)len, "simulated %s %d", config.name, config.ordinal[dev]);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev) {
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(dev);
    device_uuid(config.ordinal[dev], uuid->bytes);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    ENTER(cuDeviceGetUuid, NEED_INIT);
    return get_uuid(uuid, dev);
}

SIM_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    ENTER(cuDeviceGetUuid, NEED_INIT);
    return get_uuid(uuid, dev);
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    ENTER(cuDeviceTotalMem, NEED_INIT);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(dev);
    *bytes = config.memory;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    ENTER(cuDeviceComputeCapability, NEED_INIT);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(dev);
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev) {
    ENTER(cuDeviceGetPCIBusId, NEED_INIT);
    if (!text || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(dev);
    // No real device has the domain ffff.
    snprintf(text, (size_t)len, "FFFF:%02X:00.0", config.ordinal[dev] + 1);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text) {
    ENTER(cuDeviceGetByPCIBusId, NEED_INIT);
    if (!dev || !text) return CUDA_ERROR_INVALID_VALUE;
    unsigned domain, bus;
    if (sscanf(text, "%x:%x:", &domain, &bus) == 2 && domain == 0xFFFF) {
        for (int i = 0; i < config.devices; i++) {
            if ((unsigned)config.ordinal[i] + 1 != bus) continue;
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

struct attribute { int number, value; };

// The attributes of a device: the number of each attribute in the driver's interface, and its value. The comments name the attributes.
// For any other number up to LAST_ATTRIBUTE, the last attribute of CUDA 13.0, the call returns the value 0. For a greater number, it
// returns the error INVALID_VALUE.
static const struct attribute attributes[] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, // threads in a block, block dimensions
    {5, 2147483647}, {6, 65535}, {7, 65535}, // grid dimensions
    {8, 49152}, {9, 65536}, {10, 32}, {11, 2147483647}, {12, 65536}, // shared, constant, warp, pitch, registers
    {13, 1000000}, {14, 512}, {15, 1}, {16, 4}, // clock, texture alignment, overlap, multiprocessors
    {19, 1}, // can map host memory
    {30, 512}, {31, 1}, // surface alignment, concurrent kernels
    {35, 0}, {36, 1000000}, {37, 256}, {38, 1 << 20}, {39, 2048}, {40, 2}, {41, 1}, // ..., unified addressing
    {50, 0xFFFF}, {51, 32}, {75, 9}, {76, 0}, {78, 1}, {79, 1}, {80, 1}, {81, 233472}, {82, 65536},
    {86, 0}, {87, 2}, {90, 1}, {91, 1}, {95, 1}, {97, 232448}, {98, 0},
    {99, 1}, // host register
    {102, 1}, {103, 1}, // virtual memory management, its POSIX file descriptors
    {106, 32}, {111, 1024}, {113, 1}, // ..., read-only host register
    {114, 0}, {115, 1}, // memory pools
    {119, 1}, // handle types of pools: POSIX file descriptors
    {122, 1}, {123, 1}, {125, 1}, {126, 1}, // 64-bit stream memory operations, NOR, IPC events
    {130, 0}, {131, -1}, {134, 0}, {139, 0}, {140, 0}, {141, 1}, {142, 1}, {143, 1}, // host NUMA: id, VMM, pools
    {144, 1}, // pools of the host
};
enum { LAST_ATTRIBUTE = 148 };

static int attribute(int number) {
    for (const char *at = config.attributes; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        int key, value;
        if (sscanf(at, "%d=%d", &key, &value) == 2 && key == number) return value;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        if (attributes[i].number == number) return attributes[i].value;
    }
    return 0;
}

SIM_API CUresult cuDeviceGetAttribute(int *value, int number, CUdevice dev) {
    ENTER(cuDeviceGetAttribute, NEED_INIT);
    if (!value || number < 1 || number > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
    DEVICE(dev);
    *value = attribute(number);
    bool pools = number == 115 || number == 119 || number == 142 || number == 144;
    if (number == 33) *value = config.ordinal[dev] + 1; // PCI bus
    if (pools && !config.pools) *value = 0;
    if ((number == 122 || number == 123) && !config.stream_mem_ops) *value = 0;
    if (number == 125 && !config.ipc_events) *value = 0;
    return CUDA_SUCCESS;
}
