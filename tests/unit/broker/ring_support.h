/* ring_support.h - what the tests of the ring share: worker processes, a board
 * that all of them see, messages that show damage, a store in shared memory.
 *
 * A child reports by its exit status only; the test asserts. */
#ifndef RING_SUPPORT_H
#define RING_SUPPORT_H

#include "ring.h"
#include "ring_hook.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Iterations: the long form under CRIER_SOAK=1. */
static inline unsigned soak(unsigned brief, unsigned full) {
  const char *s = getenv("CRIER_SOAK");
  return s && *s == '1' ? full : brief;
}

static inline uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline void pause_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static inline void *shared_memory(size_t n) {
  void *p =
      mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

/* --- Processes --- */

typedef int (*worker_f)(ring_s *r, unsigned slot, void *arg);

/* A child that runs `f` and leaves with what it returns; 99 when it hangs. */
static inline pid_t spawn(worker_f f, ring_s *r, unsigned slot, void *arg) {
  pid_t pid = fork();
  if (pid)
    return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(soak(20, 1200));
  _exit(f(r, slot, arg));
}

/* The exit status, or 1000 + the signal. */
static inline int reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  int result =
      WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  if (getenv("RING_SHOW"))
    fprintf(stderr, "child %d: %d\n", (int)pid, result);
  return result;
}

static inline int wait_stopped(pid_t pid) {
  int status = 0;
  return waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) ? 0 : -1;
}

/* --- A point at which this process raises a signal --- */

static const char *trap_point;
static int trap_signal;
static unsigned trap_after; /* hits that pass */

static inline void trap_hook(const char *point) {
  if (strcmp(point, trap_point) == 0 && trap_after-- == 0)
    raise(trap_signal);
}

static inline void trap_at(const char *point, unsigned after, int signal) {
  trap_point = point;
  trap_after = after;
  trap_signal = signal;
  ring_hook = trap_hook;
}

/* --- Messages that show damage --- */

/* A body of `len` bytes that is a function of (writer, seq). */
static inline void body_fill(char *body, size_t len, unsigned writer,
                             uint32_t seq) {
  uint32_t x = writer * 2654435761u + seq * 40503u + (uint32_t)len + 1;
  for (size_t i = 0; i < len; i++) {
    x = x * 1664525u + 1013904223u;
    body[i] = (char)(x >> 24);
  }
}

static inline bool body_is(view_s body, unsigned writer, uint32_t seq) {
  uint32_t x = writer * 2654435761u + seq * 40503u + (uint32_t)body.len + 1;
  for (size_t i = 0; i < body.len; i++) {
    x = x * 1664525u + 1013904223u;
    if (body.data[i] != (char)(x >> 24))
      return false;
  }
  return true;
}

/* A message of writer w: kind = w, ttl = seq. */
static inline ring_message_s message_of(const ring_s *r, view_s channel,
                                        unsigned writer, uint32_t seq,
                                        char *body, size_t len) {
  body_fill(body, len, writer, seq);
  return (ring_message_s){.hash = ring_hash(r, channel),
                          .ttl = seq,
                          .kind = (uint8_t)writer,
                          .channel = channel,
                          .body = view_of(body, len)};
}

static inline bool record_is_whole(const ring_record_s *rec) {
  return body_is(rec->body, rec->kind, rec->ttl);
}

/* Append and commit, for as long as it takes, within reason. */
static inline int publish_s(ring_s *r, ring_store_s *store,
                            const ring_message_s *m, ring_place_s *place) {
  for (uint64_t from = now_ms(); now_ms() - from < 10000; sched_yield()) {
    ring_turn(r);
    int rc = ring_append(r, m, 1, place), e = errno;
    if (ring_commit(r, store) < 0)
      return -1;
    if (rc == 0)
      return 0;
    if (e != EAGAIN && e != ETIMEDOUT)
      return -1;
  }
  return -1;
}

/* Sleep by the protocol. False: it was a wake-up that came too late, or never:
 * two seconds passed with something to read. */
static inline bool sleep_well(ring_s *r, int fd) {
  if (!ring_may_sleep(r))
    return true;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  int n = poll(&p, 1, 2000);
  ring_woke(r, n > 0);
  ring_marks_s m;
  ring_marks(r, &m);
  if (!n && getenv("RING_SHOW"))
    fprintf(stderr, "slept: head %ju stable %ju, id %ju of %ju\n",
            (uintmax_t)m.head, (uintmax_t)m.stable, (uintmax_t)ring_last_id(r),
            (uintmax_t)m.stable_id);
  return n > 0 || m.stable_id == ring_last_id(r);
}

/* --- A store in shared memory; a transaction is one step --- */

enum { STORE_MAX = 4096 };
typedef struct {
  uint64_t committed;
  uint64_t ids[STORE_MAX];
  char keys[STORE_MAX][16];
  uint32_t count;
  int fail_begin, fail_commit, fail_reopen; /* so many times */
  bool is_kept;                /* a failed commit was written all the same */
  uint32_t transactions, most; /* most: kept; beyond: refused */
  uint32_t torn; /* bodies that were not whole when they were put */
  long commit_ms;
} stored_s;

typedef struct {
  ring_store_s super;
  stored_s *stored;
  uint32_t count; /* within the transaction */
} store_s;

static inline store_s *store_of(ring_store_s *s) {
  return (store_s *)s;
}

static inline int store_begin(ring_store_s *s, uint64_t *committed) {
  stored_s *d = store_of(s)->stored;
  if (d->fail_begin && d->fail_begin--) {
    errno = EIO;
    return -1;
  }
  store_of(s)->count = d->count;
  *committed = d->committed;
  return 0;
}

static inline uint64_t store_key(const store_s *s, view_s key) {
  for (uint32_t i = 0; key.len && i < s->count; i++)
    if (view_eq(view_str(s->stored->keys[i]), key))
      return s->stored->ids[i];
  return 0;
}

static inline void store_put(ring_store_s *super, const ring_record_s *group,
                             size_t n, ring_verdict_s *verdicts) {
  store_s *s = store_of(super);
  if (s->count + n > s->stored->most) {
    for (size_t i = 0; i < n; i++)
      verdicts[i].verdict = RING_REFUSED;
    return;
  }
  for (size_t i = 0; i < n; i++) {
    uint64_t first = store_key(s, group[i].key);
    s->stored->torn += !record_is_whole(&group[i]);
    if (first) {
      verdicts[i] = (ring_verdict_s){RING_DUPLICATE, first};
      continue;
    }
    char *key = s->stored->keys[s->count];
    memset(key, 0, 16);
    if (group[i].key.len)
      memcpy(key, group[i].key.data, group[i].key.len);
    s->stored->ids[s->count++] = group[i].id;
  }
}

static inline int store_commit(ring_store_s *super, uint64_t last_id) {
  store_s *s = store_of(super);
  stored_s *d = s->stored;
  bool has_failed = d->fail_commit && d->fail_commit--;
  if (d->commit_ms)
    pause_ms(d->commit_ms);
  if (!has_failed || d->is_kept) {
    d->count = s->count;
    d->committed = last_id;
    d->transactions++;
  }
  errno = EIO;
  return has_failed ? -1 : 0;
}

static inline int store_reopen(ring_store_s *super, uint64_t *committed) {
  stored_s *d = store_of(super)->stored;
  *committed = d->committed;
  return d->fail_reopen && d->fail_reopen-- ? -1 : 0;
}

static const ring_store_ops_s store_ops = {store_begin, store_put, store_commit,
                                           store_reopen};

static inline unsigned store_times(const stored_s *d, uint64_t id) {
  unsigned n = 0;
  for (uint32_t i = 0; i < d->count; i++)
    n += d->ids[i] == id;
  return n;
}

#endif
