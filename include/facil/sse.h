/* sse.h - server-sent events on facil: the connection of a stream.
 *
 * The carrier: the answer's head, `retry`, keep-alives, the end. What travels
 * is a dialect's, which keeps its own bytes in the same object. Nothing is read
 * from the peer but its end, so there is no read time-out: keep-alives and
 * TCP's own find a dead one. Loop thread only. */
#ifndef FACIL_SSE_H
#define FACIL_SSE_H

#include "http.h"

typedef struct sse_s sse_s;

typedef struct {
  uint32_t keepalive_ms;
  uint32_t retry_ms;
  uint32_t slow_timeout_ms; /* a blocked peer that takes nothing for so long */
} sse_settings_s;

typedef struct {
  size_t size; /* bytes of the dialect's own, zeroed, for sse_user */
  void (*on_open)(sse_s *sse, void *arg);
  void (*on_ready)(sse_s *sse);
  size_t (*on_sent)(sse_s *sse, size_t sent);
  /* A keep-alive is due. */
  void (*on_keepalive)(sse_s *sse);
  void (*on_close)(sse_s *sse);
} sse_handler_s;

/* Of this process, before the first stream. Copied. */
FACIL_PUBLIC void sse_set(const sse_settings_s *settings);

/* Answer `h` with a stream. `arg` is on_open's. `h` is gone after this. */
FACIL_PUBLIC void sse_start(http_s *h, const sse_handler_s *handler, void *arg);

FACIL_PUBLIC void *sse_user(sse_s *sse);
FACIL_PUBLIC sse_s *sse_of(void *user);
FACIL_PUBLIC intptr_t sse_uuid(const sse_s *sse);

/* Queue whole events or lines of our own. A peer whose queue is full is
 * aborted. */
FACIL_PUBLIC void sse_write(sse_s *sse, view_s bytes);

/* End the stream in order. */
FACIL_PUBLIC void sse_end(sse_s *sse);

#endif
