/* dialects.h - what is spoken to users: the routes of all dialects.
 *
 * A dialect is one file in protocols/dialects that gives a table of routes; its
 * line in that folder's build list puts it in here. */
#ifndef FACIL_DIALECTS_H
#define FACIL_DIALECTS_H

#include "http.h"

typedef struct {
  bool slow_closes;         /* slow = close: 4000 instead of skipping */
  uint32_t drain_notice_ms; /* `drain` goes out this long before 1001 */
  size_t message_max;
  uint64_t replay_limit; /* messages in one answer */
  uint64_t poll_max_wait_ms;
  uint64_t batch_max; /* messages in one batch */
} dialect_settings_s;

/* Before the first connection, in each process. */
FACIL_PUBLIC void dialects_set(const dialect_settings_s *settings);

/* The broker is about to stop: tell all clients whose dialect has a word for
 * it.
 */
FACIL_PUBLIC void dialects_notice(void);

/* All routes, in the order in which they are tried. */
FACIL_PUBLIC const http_route_s *dialects_routes(size_t *count);

#endif
