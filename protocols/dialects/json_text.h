/* json_text.h - writing JSON by hand, where messages are framed (RFC 8259).
 *
 * What is written is sized first, so that a frame is made in one piece. The
 * text given is valid UTF-8. Private to dialects. */
#ifndef CRIER_JSON_TEXT_H
#define CRIER_JSON_TEXT_H

#include "facil/view.h"

/* Bytes of `text` as a JSON string, with its quotes. */
size_t json_string_size(view_s text);

/* Write it; returns the end. */
char *json_string_write(char *out, view_s text);

/* The same of any bytes in base64 (RFC 4648 section 4). */
size_t json_base64_size(view_s bytes);
char *json_base64_write(char *out, view_s bytes);

/* Copy `text` as it is; returns the end. */
static inline char *json_raw(char *out, view_s text) {
  if (text.len)
    memcpy(out, text.data, text.len);
  return out + text.len;
}

#endif
