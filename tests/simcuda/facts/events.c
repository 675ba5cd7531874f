// Events.
#include "facts.h"

#include <string.h>
#include <sys/mman.h>

void section_events(void) {
    struct partner p = partner_start("event_opener");
    primary(0);
    CUevent plain, timed, again, shared;
    CUstream s;
    float ms = -1;
    MUST(cuStreamCreate(&s, 1));
    ask("interprocess with timing", cuEventCreate(&shared, 4));
    ask("unknown flags", cuEventCreate(&shared, 64));
    MUST(cuEventCreate(&plain, 2));
    MUST(cuEventCreate(&timed, 0));
    MUST(cuEventCreate(&again, 0));
    MUST(cuEventCreate(&shared, 6));
    ask("query before a recording", cuEventQuery(plain));
    ask("synchronise before a recording", cuEventSynchronize(plain));
    ask("wait before a recording", cuStreamWaitEvent(s, plain, 0));
    ask("elapsed before a recording", cuEventElapsedTime(&ms, timed, again));
    MUST(cuEventRecord(timed, s));
    MUST(cuEventRecord(plain, s));
    MUST(cuStreamSynchronize(s));
    ask("elapsed with one recorded", cuEventElapsedTime(&ms, timed, again));
    ask("elapsed without timing", cuEventElapsedTime(&ms, timed, plain));
    MUST(cuEventRecord(again, s));
    MUST(cuStreamSynchronize(s));
    ask("elapsed", cuEventElapsedTime(&ms, timed, again));
    _Atomic uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(cuMemHostRegister_v2((void *)word, 4096, 2));
    MUST(cuStreamWaitValue64_v2(s, (CUdeviceptr)word, 1, 0));
    MUST(cuEventRecord(again, s));
    ask("query while it waits", cuEventQuery(again));
    ask("elapsed while it waits", cuEventElapsedTime(&ms, timed, again));
    ask("wait flags", cuStreamWaitEvent(s, again, 7));
    CUipcEventHandle h;
    ask("handle of a plain event", cuIpcGetEventHandle(&h, plain));
    ask("handle", cuIpcGetEventHandle(&h, shared));
    CUipcEventHandle twice;
    MUST(cuIpcGetEventHandle(&twice, shared));
    say("handle twice", "same %d", memcmp(&h, &twice, 64) == 0);
    CUevent opened;
    ask("open in the same process", cuIpcOpenEventHandle(&opened, h));
    ask("record interprocess", cuEventRecord(shared, s));
    ask("query interprocess", cuEventQuery(shared));
    send_bytes(p.socket, &h, sizeof h, -1);
    await(p.socket);
    *word = 1;
    MUST(cuStreamSynchronize(s));
    ask("query interprocess, done", cuEventQuery(shared));
    tell(p.socket);
    await(p.socket);
    ask("destroy while it is open elsewhere", cuEventDestroy_v2(shared));
    tell(p.socket);
    partner_end(p);
    CUcontext second;
    MUST(cuCtxCreate_v2(&second, 0, 0));
    CUstream other;
    MUST(cuStreamCreate(&other, 1));
    ask("record in a stream of another context", cuEventRecord(plain, other));
    ask("wait in a stream of another context", cuStreamWaitEvent(other, plain, 0));
}

void role_event_opener(void) {
    CUipcEventHandle h, bad;
    receive_bytes(partner_socket, &h, sizeof h);
    primary(0);
    CUevent e, again;
    CUstream s;
    MUST(cuStreamCreate(&s, 1));
    ask("opener: open", cuIpcOpenEventHandle(&e, h));
    ask("opener: open again", cuIpcOpenEventHandle(&again, h));
    ask("opener: destroy the second", cuEventDestroy_v2(again));
    ask("opener: query", cuEventQuery(e));
    ask("opener: wait", cuStreamWaitEvent(s, e, 0));
    ask("opener: stream", cuStreamQuery(s));
    CUipcEventHandle mine;
    ask("opener: its own handle of it", cuIpcGetEventHandle(&mine, e));
    bad = h;
    memset(&bad, 0, sizeof bad);
    ask("opener: zero handle", cuIpcOpenEventHandle(&again, bad));
    tell(partner_socket);
    await(partner_socket);
    ask("opener: synchronise", cuStreamSynchronize(s));
    ask("opener: query, done", cuEventQuery(e));
    ask("opener: record", cuEventRecord(e, s));
    ask("opener: synchronise", cuEventSynchronize(e));
    tell(partner_socket);
    await(partner_socket);
    ask("opener: open after it was destroyed", cuIpcOpenEventHandle(&again, h));
    ask("opener: record after it was destroyed", cuEventRecord(e, s));
    ask("opener: synchronise after it was destroyed", cuEventSynchronize(e));
    ask("opener: destroy", cuEventDestroy_v2(e));
}
