// This program asks a CUDA driver questions. The driver is real or simulated. Each question prints one line, which depends on
// the answer and not on the machine. So the answers of a real driver can be stored, and compared with the answers of the simulation.
#ifndef FACTS_H
#define FACTS_H

#include "../cudaapi.h"
#include "driver.h"

#include <stdbool.h>
#include <stdio.h>

void say(const char *question, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *name(CUresult r); // the name of a result without CUDA_ERROR_
void ask(const char *question, CUresult r); // prints the result's name
void must(CUresult r, const char *what, int line); // ends the section if r is an error
#define MUST(call) must(call, #call, __LINE__)

CUcontext primary(int device); // initialises the driver, retains the primary context, and makes it current
CUmemoryPool pool_of(int device, int handle_types, size_t max);
CUdeviceptr from_pool(CUmemoryPool pool, size_t size);
uint64_t pool_attribute(CUmemoryPool pool, int attribute);
CUfunction store_kernel(void); // out[i] = (multiply * i + add) ^ xor

// A section runs in its own process, and may start a partner: the same program in another role.
struct section { const char *name; void (*run)(void); };
extern const struct section sections[];
extern const int section_count;
struct partner { int pid, socket; };
struct partner partner_start(const char *role);
void partner_end(struct partner p);
void send_bytes(int socket, const void *bytes, size_t size, int fd); // fd -1: send no descriptor
int receive_bytes(int socket, void *bytes, size_t size); // returns the received descriptor, or -1
void tell(int socket); // tell sends one byte and await receives one, so that two processes keep in step
void await(int socket);
extern const struct section roles[]; // run() finds its socket in partner_socket
extern const int role_count;
extern int partner_socket;

#define SECTIONS(X) X(address) X(start) X(contexts) X(pools) X(pool_current) X(pool_access) X(pool_ipc) X(pool_life) X(words) \
    X(blocking) X(host) X(attributes) X(vmm) X(vmm_word) X(legacy) X(legacy_peer) X(events) X(modules) X(copies) \
    X(captures) X(stale) X(sticky) X(host_range)
#define ROLES(X) X(pool_importer) X(pool_stranger) X(legacy_opener) X(legacy_owners_context) X(legacy_others_context) \
    X(legacy_both_contexts) X(event_opener) X(vmm_importer) X(host_range_importer)
#define X(n) void section_##n(void);
SECTIONS(X)
#undef X
#define X(n) void role_##n(void);
ROLES(X)
#undef X

#endif
