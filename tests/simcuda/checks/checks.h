// Tests of features that a real driver does not have (faults, counts, the detector of misuse), and of processes that start
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
    const char *environment; // NAME=value, separated by |; an @ in a value stands for the folder of the case
    void (*run)(void);
    const char *report; // text that the misuse file must contain; "": the file must be empty; NULL: the file is not checked
    int signal; // the signal that must end the process of the case, or 0
};
extern const struct check misuse_checks[], fault_checks[], life_checks[];

extern const char *folder; // the folder of this case
void fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
#define EXPECT(condition) \
    do { if (!(condition)) fail(__FILE__, __LINE__, "%s", #condition); } while (0)
#define RESULT(call, wanted) expect_result(__FILE__, __LINE__, #call, call, wanted)
#define OK(call) RESULT(call, CUDA_SUCCESS)
void expect_result(const char *file, int line, const char *what, CUresult got, CUresult wanted);

CUcontext start(int device); // calls cuInit, retains the primary context, and makes this context current
void stop(int device); // releases the primary context
CUmemoryPool make_pool(size_t max);
CUdeviceptr take(CUmemoryPool pool, size_t size);
double seconds(void);

// Another process, forked before the driver is used. The child runs fn and exits. put sends bytes to the other process,
// and get receives bytes from it.
struct child { int pid, in, out; };
struct child child_start(void (*fn)(struct child *parent));
void put(struct child *c, const void *bytes, size_t size);
void get(struct child *c, void *bytes, size_t size);
int borrow(int pid, int fd); // opens the file of another process's descriptor
void child_kill(struct child *c);
void child_wait(struct child *c);

#endif
