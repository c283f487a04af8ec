/* since.h - from where on a subscriber wants messages: an id, "first", "now" or
 * "-N". Private to dialects. */
#ifndef CRIER_SINCE_H
#define CRIER_SINCE_H

#include "facil/pubsub.h"

typedef enum { SINCE_NOW, SINCE_ID, SINCE_FIRST, SINCE_LAST } since_e;

typedef struct {
  since_e what;
  uint64_t n; /* the id, or how many of the last */
} since_s;

/* False: the text is none of them. */
bool since_read(view_s text, since_s *since);

/* The cursor behind which messages are wanted, for one channel, or for the
 * merged stream of several channels and patterns. `now` is where a subscriber
 * joins. 0: all that is kept, and what is gone is no gap. */
uint64_t since_cursor(const since_s *since, const view_s *names, size_t count,
                      uint64_t now);

#endif
