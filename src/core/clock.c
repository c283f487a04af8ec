/* clock.c - monotonic milliseconds; a test may bring its own. */
#include "facil/clock.h"
#include <time.h>

static uint64_t (*source)(void);

uint64_t clock_ms(void) {
  if (source)
    return source();
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + 1;
}

void clock_set_source(uint64_t (*from)(void)) {
  source = from;
}
