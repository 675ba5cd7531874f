// Runs all sections, or the sections named as arguments. Each runs in its own process: some questions crash a real driver.
#include "facts.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

const struct section sections[] = {
#define X(n) {#n, section_##n},
    SECTIONS(X)
#undef X
};
const int section_count = sizeof sections / sizeof *sections;
const struct section roles[] = {
#define X(n) {#n, role_##n},
    ROLES(X)
#undef X
};
const int role_count = sizeof roles / sizeof *roles;
int partner_socket = -1;
static const char *section = "";

void say(const char *question, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("%s: %s: %s\n", section, question, text);
    fflush(stdout);
}

const char *name(CUresult r) {
    const char *text = NULL;
    if (cuGetErrorName(r, &text) != CUDA_SUCCESS || !text) return "?";
    return strncmp(text, "CUDA_ERROR_", 11) == 0 ? text + 11 : text + 5;
}

void ask(const char *question, CUresult r) { say(question, "%s", name(r)); }

void must(CUresult r, const char *what, int line) {
    if (r == CUDA_SUCCESS) return;
    say("section ended", "line %d: %s: %s", line, what, name(r));
    exit(3);
}

CUcontext primary(int device) {
    CUcontext ctx;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&ctx, device));
    MUST(cuCtxSetCurrent(ctx));
    return ctx;
}

CUmemoryPool pool_of(int device, int handle_types, size_t max) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = handle_types,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}, .maxSize = max};
    CUmemoryPool pool;
    MUST(cuMemPoolCreate(&pool, &props));
    return pool;
}

CUdeviceptr from_pool(CUmemoryPool pool, size_t size) {
    CUdeviceptr p;
    MUST(cuMemAllocFromPoolAsync(&p, size, pool, NULL));
    MUST(cuStreamSynchronize(NULL));
    return p;
}

uint64_t pool_attribute(CUmemoryPool pool, int attribute) {
    uint64_t value = 0;
    MUST(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

CUfunction store_kernel(void) {
    static const char ptx[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry poolbridge_fill_u32_xor(.param .u64 out, .param .u64 n, .param .u32 multiply,"
        " .param .u32 add, .param .u32 mask)\n{\n"
        ".reg .pred %p;\n.reg .b32 %r<9>;\n.reg .b64 %d<6>;\n"
        "ld.param.u64 %d1, [out];\nld.param.u64 %d2, [n];\nld.param.u32 %r1, [multiply];\n"
        "ld.param.u32 %r2, [add];\nld.param.u32 %r3, [mask];\n"
        "mov.u32 %r4, %ctaid.x;\nmov.u32 %r5, %ntid.x;\nmov.u32 %r6, %tid.x;\nmad.lo.u32 %r7, %r4, %r5, %r6;\n"
        "cvt.u64.u32 %d3, %r7;\nsetp.ge.u64 %p, %d3, %d2;\n@%p bra done;\n"
        "mad.lo.u32 %r8, %r7, %r1, %r2;\nxor.b32 %r8, %r8, %r3;\n"
        "shl.b64 %d4, %d3, 2;\nadd.u64 %d5, %d1, %d4;\ncvta.to.global.u64 %d5, %d5;\nst.global.u32 [%d5], %r8;\n"
        "done:\nret;\n}\n";
    CUmodule module;
    CUfunction function;
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&function, module, "poolbridge_fill_u32_xor"));
    return function;
}

struct partner partner_start(const char *role) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) exit(4);
    char number[16];
    snprintf(number, sizeof number, "%d", ends[1]);
    int pid = fork();
    if (pid == 0) {
        close(ends[0]);
        execl("/proc/self/exe", "facts", "--role", role, number, section, (char *)NULL);
        _exit(5);
    }
    close(ends[1]);
    return (struct partner){pid, ends[0]};
}

void partner_end(struct partner p) {
    int status;
    close(p.socket);
    waitpid(p.pid, &status, 0);
    if (status != 0) say("partner ended", WIFSIGNALED(status) ? "signal %d" : "status %d", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void send_bytes(int socket, const void *bytes, size_t size, int fd) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(void *)bytes, size};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(socket, &m, MSG_NOSIGNAL) != (ssize_t)size) exit(6);
}

int receive_bytes(int socket, void *bytes, size_t size) {
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {bytes, size};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != (ssize_t)size) exit(7);
    int fd = -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c) memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

void tell(int socket) { send_bytes(socket, "x", 1, -1); }

void await(int socket) {
    char byte;
    receive_bytes(socket, &byte, 1);
}

static int run(const struct section *s) {
    int pid = fork();
    if (pid == 0) {
        section = s->name;
        s->run();
        exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status == 0) return 0;
    section = s->name;
    if (WIFSIGNALED(status)) printf("%s: ended by signal %d\n", section, WTERMSIG(status));
    else printf("%s: ended with status %d\n", section, WEXITSTATUS(status));
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--role") == 0) {
        partner_socket = atoi(argv[3]);
        section = argv[4];
        for (int i = 0; i < role_count; i++) {
            if (strcmp(roles[i].name, argv[2]) == 0) roles[i].run();
        }
        return 0;
    }
    int bad = 0;
    for (int i = 0; i < section_count; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++) wanted = wanted || strcmp(argv[k], sections[i].name) == 0;
        if (wanted) bad |= run(&sections[i]);
    }
    return bad;
}
