/* shlock.h - a lock between processes that survives its holder.
 *
 * A robust mutex in a shared mapping. Three things are added to it:
 *
 * - nobody waits for long: a loop takes it within 100 ms or is told so, and
 *   after one such time-out it only tries, once a turn, until it succeeds;
 * - who holds it, and since when, lies beside it, so that a watchdog can end
 *   the one process that is stuck in it, and no other;
 * - a holder that was stopped before it could write that down, or after it
 *   wiped it, is found by the thread id that the kernel's robust-futex ABI
 *   keeps in the lock word itself.
 *
 * What the lock guards must be right after a death at any step: there is no
 * repair here, only the news that the last holder died. Private to src/broker.
 */
#ifndef BROKER_SHLOCK_H
#define BROKER_SHLOCK_H

#include <facil/base.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SHLOCK_WAIT_MS 100

/* In the shared mapping, on a cache line of its own. */
typedef struct {
  pthread_mutex_t mutex;
  _Atomic uint64_t
      mark; /* since (ms) << 16 | slot + 1; 0: nobody, or not yet */
} shlock_s;

/* How one loop stands to one lock; in its own memory, zeroed. */
typedef struct {
  bool is_stalled; /* timed out; since then only tried */
  bool was_tried;  /* in this turn */
} shlock_user_s;

/* What the watchdog saw at its last looks; in its own memory, zeroed. */
typedef struct {
  uint64_t key, since_ms, last_ms;
  unsigned looks;
} shlock_watch_s;

/* Before the fork. -1 and errno of pthread_mutex_init. */
FACIL_MUST_CHECK int shlock_init(shlock_s *l);

/* Each of these three: 0 taken; 1 taken, and the last holder died in it; -1 not
 * taken. `slot` names the caller for the watchdog. */

/* Never waits. EBUSY. */
FACIL_MUST_CHECK int shlock_try(shlock_s *l, unsigned slot);
/* For loops: waits at most SHLOCK_WAIT_MS, or not at all (above). ETIMEDOUT. */
FACIL_MUST_CHECK int shlock_take(shlock_s *l, shlock_user_s *u, unsigned slot);
/* For threads that may block. Does not fail. */
FACIL_MUST_CHECK int shlock_wait(shlock_s *l, unsigned slot);

void shlock_give(shlock_s *l);

/* A new turn of the loop: a stalled lock may be tried again. */
static inline void shlock_turn(shlock_user_s *u) {
  u->was_tried = false;
}

/* For the watchdog, to be called every 100 ms or so with the milliseconds of
 * CLOCK_MONOTONIC: has one holder had the lock for more than `limit_ms`? Then
 * true, and either *slot >= 0, or *slot = -1 and *tid is its thread. Says so
 * only of what it has seen at two looks (three, when only the thread is known),
 * so a machine or a process group that was stopped as a whole costs nobody. */
bool shlock_is_stuck(shlock_s *l, shlock_watch_s *w, uint64_t now_ms,
                     uint64_t limit_ms, int *slot, int32_t *tid);

/* The process of `slot` is dead and reaped: what it wrote beside the lock must
 * not be held against its successor. */
void shlock_forget(shlock_s *l, unsigned slot);

#endif
