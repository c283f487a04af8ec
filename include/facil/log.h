/* log.h - one line per event, on stderr.
 *
 * A line is `level event key=value …`. No payload bytes, no credentials. What
 * would be logged in a loop is a counter instead. May be called on any thread
 * and in any process: a line is written by one write(2). */
#ifndef FACIL_LOG_H
#define FACIL_LOG_H

#include "base.h"
#include <stdbool.h>

typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level_e;

/* Lines above `level` are dropped. Default: LOG_INFO. */
FACIL_PUBLIC void log_set_level(log_level_e level);

/* Whether a line of that level would be written. */
FACIL_PUBLIC bool log_on(log_level_e level);

/* Write `event`, a stable name without blanks, and what `fmt` makes. Lines are
 * cut at 1 KiB; control characters in the line become '?'. Keeps errno. */
FACIL_PUBLIC void log_line(log_level_e level, const char *event,
                           const char *fmt, ...) FACIL_PRINTF(3, 4);

/* True at most once a second for each `*last_ms`, which starts at 0: for events
 * that a peer can cause at will. */
FACIL_PUBLIC bool log_seldom(uint64_t *last_ms);

#endif
