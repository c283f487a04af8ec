/* subscribe.h - what a request to subscribe asks for, whatever carries it: GET
 * /channels/{name} and GET /subscribe. Private to dialects. */
#ifndef CRIER_SUBSCRIBE_H
#define CRIER_SUBSCRIBE_H

#include "dialects_internal.h"
#include "since.h"

#define SUBSCRIBE_MAX 256 /* channels and patterns of one request */

typedef struct {
  since_s since;
  uint64_t limit;   /* messages in one answer; 0: the setting */
  uint64_t wait_ms; /* of a long poll; 0: none */
  size_t count;
  bool has_pattern;
  bool is_many; /* /subscribe: channels and patterns by the query */
  view_s names[SUBSCRIBE_MAX]; /* a pattern is one with a '*' */
} subscribe_s;

/* Answer `h` over its carrier. `ask` lives as long as the call. */
void native_start(http_s *h, subscribe_s *ask);  /* WebSocket */
void events_start(http_s *h, subscribe_s *ask);  /* server-sent events */
void history_start(http_s *h, subscribe_s *ask); /* JSON, at once or later */

#endif
