/* content.h - what a JSON object publishes: "data" or "data64", "type",
 * "event", "key", "ttl". In crier.v1 and in batches. Private to dialects. */
#ifndef CRIER_CONTENT_H
#define CRIER_CONTENT_H

#include "dialects_internal.h"
#include "json_text.h"
#include <jansson.h>

typedef struct {
  message_s message; /* all but the channel */
  view_s data; /* the value of "data" as it stands in the text; empty: none */
  char *owned; /* malloc'ed bytes of the message, or NULL */
} content_s;

/* Load an object that json_fault has passed. The value of "data" is not read,
 * for it may hold numbers that a double cannot: unless it is a string, null
 * stands in its place. The caller's reference. NULL: a name stands twice in an
 * object, or a number elsewhere is out of range, or there is no memory. */
json_t *content_load(view_s text, content_s *c);

/* Fill c->message from what was loaded; its views lie in the text and in
 * `object`. NULL, or a static sentence that says what is wrong. */
const char *content_read(json_t *object, content_s *c);

void content_free(content_s *c);

#endif
