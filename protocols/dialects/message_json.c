/* message_json.c - sized first, so that a frame or an answer is made in one
 * piece.
 */
#include "message_json.h"
#include "dialects_internal.h"
#include "json_text.h"

size_t message_json_size(const message_s *m, bool has_op) {
  char id[NUMBER_MAX];
  size_t n = sizeof "{\"channel\":,\"id\":,\"type\":,}" - 1;
  if (has_op)
    n += sizeof "\"op\":\"message\"," - 1;
  n += json_string_size(m->channel) + number_write(id, m->id) +
       json_string_size(m->type);
  if (m->kind == MESSAGE_BINARY)
    n += sizeof "\"data64\":" - 1 + json_base64_size(m->data);
  else if (m->kind == MESSAGE_TEXT)
    n += sizeof "\"data\":" - 1 + json_string_size(m->data);
  else
    n += sizeof "\"data\":" - 1 + m->data.len;
  if (m->event.len)
    n += sizeof ",\"event\":" - 1 + json_string_size(m->event);
  return n;
}

char *message_json_write(char *out, const message_s *m, bool has_op) {
  out = json_raw(out, has_op ? VIEW_LIT("{\"op\":\"message\",\"channel\":")
                             : VIEW_LIT("{\"channel\":"));
  out = json_string_write(out, m->channel);
  out = json_raw(out, VIEW_LIT(",\"id\":"));
  out += number_write(out, m->id);
  out = json_raw(out, VIEW_LIT(",\"type\":"));
  out = json_string_write(out, m->type);
  if (m->kind == MESSAGE_BINARY) {
    out = json_raw(out, VIEW_LIT(",\"data64\":"));
    out = json_base64_write(out, m->data);
  } else {
    out = json_raw(out, VIEW_LIT(",\"data\":"));
    out = m->kind == MESSAGE_TEXT ? json_string_write(out, m->data)
                                  : json_raw(out, m->data);
  }
  if (m->event.len) {
    out = json_raw(out, VIEW_LIT(",\"event\":"));
    out = json_string_write(out, m->event);
  }
  return json_raw(out, VIEW_LIT("}"));
}
