/* shlock.c - a lock between processes that survives its holder.
 *
 * Invariant: `mark` is written only by the holder (or wiped after its death),
 * so a mark that is not 0 names the holder exactly. While it is 0 and the lock
 * is held, the holder is within a few instructions of taking it or giving it
 * back; only one that was stopped just there stays so, and the thread id in the
 * lock word names it. */
#include "shlock.h"
#include "ring_hook.h"
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <time.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHLOCK_TSAN
#endif
#elif defined(__SANITIZE_THREAD__)
#define SHLOCK_TSAN
#endif

/* The sanitizer does not know this call (gcc 12, clang 14): it must be told. */
#ifdef SHLOCK_TSAN
#include <sanitizer/tsan_interface.h>
static int mutex_clocklock(pthread_mutex_t *m, const struct timespec *until) {
  __tsan_mutex_pre_lock(m, __tsan_mutex_try_lock);
  int e = pthread_mutex_clocklock(m, CLOCK_MONOTONIC, until);
  __tsan_mutex_post_lock(
      m, e ? __tsan_mutex_try_lock_failed : __tsan_mutex_try_lock, 0);
  return e;
}
#else
static int mutex_clocklock(pthread_mutex_t *m, const struct timespec *until) {
  return pthread_mutex_clocklock(m, CLOCK_MONOTONIC, until);
}
#endif

/* The kernel walks a dead thread's robust list and expects the owner's thread
 * id in the first word of the mutex. */
static uint32_t lock_word(shlock_s *l) {
  _Static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0,
                 "the futex is the first word of a mutex");
  return __atomic_load_n((uint32_t *)(void *)&l->mutex, __ATOMIC_RELAXED);
}

static uint64_t coarse_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int shlock_init(shlock_s *l) {
  pthread_mutexattr_t a;
  int e = pthread_mutexattr_init(&a);
  if (!e) {
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    e = pthread_mutex_init(&l->mutex, &a);
    pthread_mutexattr_destroy(&a);
  }
  atomic_init(&l->mark, 0);
  if (!e)
    return 0;
  errno = e;
  return -1;
}

/* `e` is what a locking call of pthread returned. */
static int lock_result(shlock_s *l, unsigned slot, int e) {
  if (e && e != EOWNERDEAD) {
    assert(e == EBUSY || e == ETIMEDOUT);
    errno = e;
    return -1;
  }
  if (e)
    pthread_mutex_consistent(&l->mutex);
  RING_POINT("lock: taken");
  atomic_store_explicit(&l->mark, coarse_ms() << 16 | (slot + 1),
                        memory_order_relaxed);
  return e ? 1 : 0;
}

int shlock_try(shlock_s *l, unsigned slot) {
  return lock_result(l, slot, pthread_mutex_trylock(&l->mutex));
}

static int lock_timed(shlock_s *l, unsigned slot) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_nsec += SHLOCK_WAIT_MS * 1000000L;
  if (t.tv_nsec >= 1000000000L) {
    t.tv_nsec -= 1000000000L;
    t.tv_sec++;
  }
  return lock_result(l, slot, mutex_clocklock(&l->mutex, &t));
}

int shlock_take(shlock_s *l, shlock_user_s *u, unsigned slot) {
  int rc = -1;
  if (!u->is_stalled || !u->was_tried)
    rc = shlock_try(l, slot); /* the usual way needs no clock */
  if (rc < 0 && !u->is_stalled)
    rc = lock_timed(l, slot);
  u->is_stalled = rc < 0;
  u->was_tried = true;
  if (rc < 0)
    errno = ETIMEDOUT;
  return rc;
}

int shlock_wait(shlock_s *l, unsigned slot) {
  return lock_result(l, slot, pthread_mutex_lock(&l->mutex));
}

void shlock_give(shlock_s *l) {
  atomic_store_explicit(&l->mark, 0, memory_order_relaxed);
  RING_POINT("lock: wiped");
  pthread_mutex_unlock(&l->mutex);
}

/* Note that `key` is seen at `now_ms`; whether it was seen `looks` times. */
static bool watch_same(shlock_watch_s *w, uint64_t key, uint64_t now_ms,
                       unsigned looks) {
  if (key != w->key || !w->looks) {
    *w = (shlock_watch_s){
        .key = key, .since_ms = now_ms, .last_ms = now_ms, .looks = 1};
  } else if (now_ms != w->last_ms) {
    w->last_ms = now_ms;
    w->looks++;
  }
  return w->looks >= looks;
}

bool shlock_is_stuck(shlock_s *l, shlock_watch_s *w, uint64_t now_ms,
                     uint64_t limit_ms, int *slot, int32_t *tid) {
  uint64_t mark = atomic_load_explicit(&l->mark, memory_order_relaxed);
  if (mark) {
    uint64_t since = mark >> 16;
    *slot = (int)(mark & 0xffff) - 1;
    return watch_same(w, mark, now_ms, 2) && now_ms > since &&
           now_ms - since > limit_ms;
  }
  uint32_t owner = lock_word(l) & FUTEX_TID_MASK;
  if (!owner) {
    w->looks = 0;
    return false;
  }
  *slot = -1;
  *tid = (int32_t)owner;
  return watch_same(w, owner, now_ms, 3) && now_ms - w->since_ms > limit_ms;
}

void shlock_forget(shlock_s *l, unsigned slot) {
  uint64_t mark = atomic_load_explicit(&l->mark, memory_order_relaxed);
  if ((mark & 0xffff) == slot + 1)
    atomic_compare_exchange_strong(&l->mark, &mark, 0);
}
