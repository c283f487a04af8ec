/* defer.h - the task queue of a loop.
 *
 * Each task runs exactly once, on the loop's thread, never inside the call that
 * posted it, in order of posting (those of one thread among themselves). Tasks
 * run in the turn after they were posted: a task that posts another one does
 * not keep the loop from its sockets. */
#ifndef FACIL_DEFER_H
#define FACIL_DEFER_H

#include "base.h"
#include <stdbool.h>

/* Run `func(arg1, arg2)` soon. Any thread of this process; a thread other than
 * the loop's wakes it. -1: EINVAL, `func` is NULL; ENOMEM: nothing was posted,
 * and what `arg1` and `arg2` point at is still the caller's. */
FACIL_PUBLIC FACIL_MUST_CHECK int defer(void (*func)(void *, void *),
                                        void *arg1, void *arg2);

/* Whether a task waits. Loop thread. */
FACIL_PUBLIC bool defer_has_queue(void);

/* Run what is queued until nothing is left. Loop thread; for use without a
 * running loop. */
FACIL_PUBLIC void defer_perform(void);

#endif
