//go:build linux && cgo

// Chunks are claimed from one 64-bit ticket: job number, worker limit, number
// of chunks and next chunk in one word. A worker that comes late finds either
// the job it means or an exhausted ticket, never half of each; it reads the
// job's fields only after it has claimed a chunk, and the fields can't change
// before that chunk is counted as done.
#define _GNU_SOURCE
#include "pool.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_CHUNKS = 4096, MAX_WORKERS = 255, SPINS = 1500 };

// Ticket layout: job number 24 bits | worker limit 8 | chunks 16 | next 16.
static _Atomic uint64_t ticket;
static _Atomic uint32_t bell;     // rung for each job; idle workers sleep on it
static _Atomic uint32_t sleepers; // workers asleep on the bell
static _Atomic uint32_t done;     // chunks finished; a waiting caller sleeps on it
static _Atomic uint32_t caller_asleep;

static struct {
	pool_task task;
	const void *arg;
	int64_t from, to, chunk;
} job;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // held for a whole job: one at a time
static int workers;                                    // started so far, under mu
static uint32_t jobs;                                  // under mu

static void relax(void) {
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void futex(_Atomic uint32_t *word, int op, uint32_t value) {
	syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, 0, 0, 0);
}

// drain claims chunks until none is left or the job isn't for this worker.
static void drain(int who) {
	for (;;) {
		uint64_t t = atomic_load_explicit(&ticket, memory_order_acquire);
		uint32_t limit = t >> 32 & 0xff, chunks = t >> 16 & 0xffff, next = t & 0xffff;
		if (next >= chunks || (uint32_t)who > limit)
			return;
		if (!atomic_compare_exchange_weak(&ticket, &t, t + 1))
			continue;
		int64_t begin = job.from + next * job.chunk, end = begin + job.chunk;
		job.task(job.arg, begin, end < job.to ? end : job.to, who);
		if (atomic_fetch_add(&done, 1) + 1 == chunks && atomic_load(&caller_asleep))
			futex(&done, FUTEX_WAKE, 1);
	}
}

static void *work(void *arg) {
	int who = (int)(intptr_t)arg;
	uint32_t seen = 0;
	for (;;) {
		int spins = 0;
		uint32_t now;
		while ((now = atomic_load(&bell)) == seen) {
			if (++spins < SPINS) {
				relax();
				continue;
			}
			atomic_fetch_add(&sleepers, 1);
			if (atomic_load(&bell) == seen)
				futex(&bell, FUTEX_WAIT, seen);
			atomic_fetch_sub(&sleepers, 1);
			spins = 0;
		}
		seen = now;
		drain(who);
	}
	return 0;
}

// start brings the pool up to n workers; with fewer the callers do more themselves.
static void start(int n) {
	sigset_t all, old;
	sigfillset(&all); // signals belong to the Go runtime's threads
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (; workers < n; workers++) {
		pthread_t id;
		if (pthread_create(&id, 0, work, (void *)(intptr_t)(workers + 1)))
			break;
		pthread_detach(id);
	}
	pthread_sigmask(SIG_SETMASK, &old, 0);
}

void pool_run(int threads, int64_t from, int64_t to, int64_t chunk, pool_task task, const void *arg) {
	int64_t n = to - from;
	if (n <= 0)
		return;
	if (chunk < 1)
		chunk = 1;
	if (threads > MAX_WORKERS + 1)
		threads = MAX_WORKERS + 1;
	if (threads <= 1 || n <= chunk) {
		task(arg, from, to, 0);
		return;
	}
	int64_t least = (n + MAX_CHUNKS - 1) / MAX_CHUNKS;
	if (chunk < least)
		chunk = least;
	uint64_t chunks = (n + chunk - 1) / chunk;

	pthread_mutex_lock(&mu);
	if (workers < threads - 1)
		start(threads - 1);
	job.task = task, job.arg = arg, job.from = from, job.to = to, job.chunk = chunk;
	atomic_store(&done, 0);
	uint64_t number = ++jobs & 0xffffff;
	atomic_store(&ticket, number << 40 | (uint64_t)(threads - 1) << 32 | chunks << 16);
	atomic_fetch_add(&bell, 1);
	if (atomic_load(&sleepers))
		futex(&bell, FUTEX_WAKE, threads - 1);
	drain(0);
	for (int spins = 0;;) {
		uint32_t d = atomic_load(&done);
		if (d == chunks)
			break;
		if (++spins < SPINS) {
			relax();
			continue;
		}
		atomic_store(&caller_asleep, 1);
		d = atomic_load(&done);
		if (d != chunks)
			futex(&done, FUTEX_WAIT, d);
		atomic_store(&caller_asleep, 0);
		spins = 0;
	}
	pthread_mutex_unlock(&mu);
}
