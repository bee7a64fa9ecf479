// The process's one pool of worker threads.
#pragma once
#include <stdint.h>

// A task handles items [begin, end); who is 0 for the calling thread and
// 1..threads-1 for workers, for scratch memory of its own.
typedef void (*pool_task)(const void *arg, int64_t begin, int64_t end, int who);

// pool_run calls task for chunks of [from, to) on up to `threads` threads, the
// caller among them, and returns when all are done. Which thread takes which
// chunk varies; tasks must not care.
void pool_run(int threads, int64_t from, int64_t to, int64_t chunk, pool_task task, const void *arg);
