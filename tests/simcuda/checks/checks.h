// Tests of what the simulation does in addition to a driver: faults, counts, the detector of misuse, and processes that start
// and die. Each case runs in its own process, with its own environment.
#ifndef CHECKS_H
#define CHECKS_H

#include "../facts/driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check {
    const char *name;
    const char *environment; // NAME=value words; @ stands for the case's own folder
    void (*run)(void);
    const char *report; // what the misuse file must have; "": it must be empty; NULL: it is not checked
    int signal; // the signal that must end it, or 0
};
extern const struct check misuse_checks[], fault_checks[], life_checks[];

extern const char *folder; // of this case
void fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
#define EXPECT(condition) \
    do { if (!(condition)) fail(__FILE__, __LINE__, "%s", #condition); } while (0)
#define RESULT(call, wanted) expect_result(__FILE__, __LINE__, #call, call, wanted)
#define OK(call) RESULT(call, CUDA_SUCCESS)
void expect_result(const char *file, int line, const char *what, CUresult got, CUresult wanted);

CUcontext start(int device); // cuInit, retain, make current
void stop(int device); // release
CUmemoryPool make_pool(size_t max);
CUdeviceptr take(CUmemoryPool pool, size_t size);
double seconds(void);

// Another process, forked before the driver is used. It runs fn(arg) and exits; lines go both ways.
struct child { int pid, in, out; };
struct child child_start(void (*fn)(struct child *parent));
void put(struct child *c, const void *bytes, size_t size);
void get(struct child *c, void *bytes, size_t size);
int borrow(int pid, int fd); // another process's descriptor
void child_kill(struct child *c);
void child_wait(struct child *c);

#endif
