/* clock.h - monotonic milliseconds.
 *
 * All of facil counts time by CLOCK_MONOTONIC, so that steps of the wall clock
 * change nothing. */
#ifndef FACIL_CLOCK_H
#define FACIL_CLOCK_H

#include "base.h"

/* Milliseconds since some fixed moment, never going back, never 0. */
FACIL_PUBLIC uint64_t clock_ms(void);

/* Tests only: take the time from `source` (NULL: the kernel again). */
FACIL_PUBLIC void clock_set_source(uint64_t (*source)(void));

#endif
