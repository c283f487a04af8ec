/* defer.c - the loop's task queue, and the inbox of other threads.
 *
 * The queue is a ring of tasks that only the loop's thread touches. The inbox
 * is a list under a mutex, held for a push or a swap; the push that finds it
 * empty writes the eventfd, once. While there is no loop everybody is another
 * thread. Invariant: a task runs exactly once, in order
 * of posting, and never inside the call that posted it. */
#include "facil/defer.h"
#include "core.h"
#include "evio.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
  void (*func)(void *, void *);
  void *arg1, *arg2;
} task_s;

typedef struct post_s {
  struct post_s *next;
  task_s task;
} post_s;

static task_s *ring;
static size_t ring_cap, ring_at, ring_used; /* cap: a power of two */

static pthread_mutex_t inbox_lock = PTHREAD_MUTEX_INITIALIZER;
static post_s *inbox_head, **inbox_tail = &inbox_head;
static volatile int inbox_fd = -1; /* read in signal handlers too */
static atomic_bool inbox_waits; /* looked at each turn, so without the mutex */
static pthread_t loop_thread;
static atomic_bool has_loop;

static int ring_grow(void) {
  size_t cap = ring_cap ? ring_cap * 2 : 64;
  task_s *bigger = malloc(cap * sizeof *bigger);
  if (!bigger)
    return -1;
  for (size_t i = 0; i < ring_used; i++)
    bigger[i] = ring[(ring_at + i) & (ring_cap - 1)];
  free(ring);
  ring = bigger;
  ring_cap = cap;
  ring_at = 0;
  return 0;
}

static int ring_push(task_s t) {
  if (ring_used == ring_cap && ring_grow() < 0)
    return -1;
  ring[(ring_at + ring_used++) & (ring_cap - 1)] = t;
  return 0;
}

static int inbox_push(task_s t) {
  post_s *p = malloc(sizeof *p);
  if (!p)
    return -1;
  *p = (post_s){.task = t};
  pthread_mutex_lock(&inbox_lock);
  bool was_empty = !inbox_head;
  *inbox_tail = p;
  inbox_tail = &p->next;
  atomic_store(&inbox_waits, true);
  int fd = inbox_fd;
  pthread_mutex_unlock(&inbox_lock);
  uint64_t one = 1;
  if (was_empty && fd >= 0 && write(fd, &one, sizeof one) < 0)
    log_line(LOG_ERROR, "inbox", "error=%d", errno);
  return 0;
}

int defer(void (*func)(void *, void *), void *arg1, void *arg2) {
  if (!func) {
    errno = EINVAL;
    return -1;
  }
  task_s t = {func, arg1, arg2};
  bool foreign =
      !atomic_load(&has_loop) || !pthread_equal(loop_thread, pthread_self());
  if ((foreign ? inbox_push(t) : ring_push(t)) == 0)
    return 0;
  errno = ENOMEM;
  return -1;
}

bool defer_has_queue(void) {
  return ring_used > 0 ||
         atomic_load_explicit(&inbox_waits, memory_order_relaxed);
}

bool defer_run(void) {
  size_t n = ring_used;
  for (size_t i = 0; i < n; i++) {
    task_s t = ring[ring_at];
    ring_at = (ring_at + 1) & (ring_cap - 1);
    ring_used--;
    t.func(t.arg1, t.arg2);
  }
  return n > 0;
}

void defer_perform(void) {
  do
    defer_inbox();
  while (defer_run());
}

void defer_end(void) {
  for (int round = 0; round < 16; round++) {
    defer_inbox();
    if (!defer_run())
      return;
  }
}

void defer_wake(void) {
  int saved = errno;
  uint64_t one = 1;
  ssize_t n = inbox_fd < 0 ? 0 : write(inbox_fd, &one, sizeof one);
  (void)n; /* full: it is awake */
  errno = saved;
}

void defer_woken(void) {
  uint64_t count;
  if (read(inbox_fd, &count, sizeof count) < 0 && errno != EAGAIN)
    log_line(LOG_ERROR, "inbox", "error=%d", errno);
}

void defer_inbox(void) {
  if (!atomic_load_explicit(&inbox_waits, memory_order_relaxed))
    return;
  atomic_store(&inbox_waits, false);
  pthread_mutex_lock(&inbox_lock);
  post_s *p = inbox_head;
  inbox_head = NULL;
  inbox_tail = &inbox_head;
  pthread_mutex_unlock(&inbox_lock);
  while (p) {
    post_s *next = p->next;
    if (ring_push(p->task) < 0)
      p->task.func(p->task.arg1, p->task.arg2); /* early is better than never */
    free(p);
    p = next;
  }
}

int defer_open(void) {
  int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0)
    return -1;
  pthread_mutex_lock(&inbox_lock);
  inbox_fd = fd;
  pthread_mutex_unlock(&inbox_lock);
  loop_thread = pthread_self();
  atomic_store(&has_loop, true);
  return fd;
}

void defer_close(void) {
  pthread_mutex_lock(&inbox_lock);
  int fd = inbox_fd;
  inbox_fd = -1;
  pthread_mutex_unlock(&inbox_lock);
  atomic_store(&has_loop, false);
  if (fd >= 0)
    close(fd);
}
