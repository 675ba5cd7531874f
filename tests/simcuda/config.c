// The configuration of the simulated machine. The simulation reads it once, from the environment.
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct config config;

void device_uuid(int ordinal, char uuid[16]); // device.c

uint64_t parse_bytes(const char *text, uint64_t otherwise) {
    if (!text || !*text) return otherwise;
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    switch (toupper((unsigned char)*end)) {
    case 'K': return value << 10;
    case 'M': return value << 20;
    case 'G': return value << 30;
    default: return value;
    }
}

static bool flag(const char *name, bool otherwise) {
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    return strcmp(text, "0") != 0;
}

// Returns the ordinal, in the machine, of the device that an entry of CUDA_VISIBLE_DEVICES names; -1: the entry names no device. As in
// the driver, a UUID may be shortened if it still names only one device.
static int visible_entry(const char *entry, int machine) {
    if (isdigit((unsigned char)*entry)) {
        char *end;
        long n = strtol(entry, &end, 10);
        return *end == 0 && n < machine ? (int)n : -1;
    }
    if (strncmp(entry, "GPU-", 4) != 0) return -1;
    int found = -1;
    for (int i = 0; i < machine; i++) {
        char uuid[16], text[48];
        device_uuid(i, uuid);
        const unsigned char *u = (const unsigned char *)uuid;
        snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
                 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
        if (strncasecmp(text, entry, strlen(entry)) != 0) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

// Reads the entries in order, like the driver. Stops at the first entry that names no device. If an entry repeats a device, no device
// is visible.
static void load_visible(int machine) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        config.devices = machine;
        for (int i = 0; i < machine; i++) config.ordinal[i] = i;
        return;
    }
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", list);
    char *rest = copy, *entry;
    while ((entry = strsep(&rest, ",")) != NULL) {
        while (isspace((unsigned char)*entry)) entry++;
        int n = visible_entry(entry, machine);
        if (n < 0) return;
        for (int i = 0; i < config.devices; i++) {
            if (config.ordinal[i] == n) {
                config.devices = 0;
                return;
            }
        }
        config.ordinal[config.devices++] = n;
    }
}

void config_load(void) {
    const char *text = getenv("SIMCUDA_UUID");
    config.uuid = text ? (unsigned)strtoul(text, NULL, 16) : 0;
    text = getenv("SIMCUDA_DEVICES");
    int machine = text && *text ? atoi(text) : 2;
    if (machine < 0) machine = 0;
    if (machine > MAX_DEVICES) machine = MAX_DEVICES;
    load_visible(machine);
    config.memory = parse_bytes(getenv("SIMCUDA_MEMORY_BYTES"), 8192 * MIB);
    config.peer = flag("SIMCUDA_PEER", true);
    config.host_access = flag("SIMCUDA_HOST_ACCESS", false);
    config.prompt = flag("SIMCUDA_PROMPT", false);
    config.pools = flag("SIMCUDA_POOLS", true);
    config.stream_mem_ops = flag("SIMCUDA_STREAM_MEM_OPS", true);
    config.ipc_events = flag("SIMCUDA_IPC_EVENTS", true);
    config.dwell_us = (unsigned)parse_bytes(getenv("SIMCUDA_MISUSE_DWELL_US"), 200);
    text = getenv("SIMCUDA_NAME");
    snprintf(config.name, sizeof config.name, "%s", text && *text ? text : "GPU");
    config.attributes = getenv("SIMCUDA_ATTRIBUTES");
    text = getenv("SIMCUDA_MACHINE");
    snprintf(config.machine, sizeof config.machine, "%s", text && *text ? text : "default");
    for (char *c = config.machine; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '_') *c = '_';
    }
}
