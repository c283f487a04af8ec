/* sse_event.h - server-sent events as bytes (the chapter "Server-sent events"
 * of the HTML standard).
 *
 * An event is sized first and then written in one piece. Whatever the data
 * holds, it stays data: each line of it (ended by CR, LF or CRLF) becomes one
 * `data:` line, so no text can end the event or add a field. NUL is sent as it
 * is: it is allowed in data.
 *
 * Any thread; no allocation. */
#ifndef FACIL_SSE_EVENT_H
#define FACIL_SSE_EVENT_H

#include "view.h"

typedef struct {
  uint64_t id;  /* 0: no id line */
  view_s event; /* no CR, LF, NUL; empty: none (browsers fire "message") */
  view_s data;  /* UTF-8 */
} sse_event_s;

FACIL_PUBLIC size_t sse_event_size(const sse_event_s *e);

/* Write it and its empty line; returns the end, `sse_event_size` bytes on. */
FACIL_PUBLIC char *sse_event_write(char *out, const sse_event_s *e);

/* An `id:` line and its empty line: moves Last-Event-ID and fires nothing. At
 * most SSE_CURSOR_MAX bytes; returns the end. */
#define SSE_CURSOR_MAX 32
FACIL_PUBLIC char *sse_cursor_write(char *out, uint64_t id);

#endif
