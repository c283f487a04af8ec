/* sse_event.c - one event, one piece. The invariant: between the first byte and
 * the empty line at the end there is no other empty line, and every line begins
 * with a field name of ours. */
#include "facil/sse_event.h"

#define DIGITS_MAX 20

/* The length of the line at the start of `v`, and in *next where the one after
 * it begins. */
static size_t line_of(view_s v, size_t *next) {
  size_t n = 0;
  while (n < v.len && v.data[n] != '\n' && v.data[n] != '\r')
    n++;
  *next = n;
  if (n < v.len)
    *next +=
        v.data[n] == '\r' && n + 1 < v.len && v.data[n + 1] == '\n' ? 2 : 1;
  return n;
}

static size_t digits_of(uint64_t n, char *out) {
  char reversed[DIGITS_MAX];
  size_t len = 0;
  do
    reversed[len++] = (char)('0' + n % 10);
  while (n /= 10);
  for (size_t i = 0; i < len; i++)
    out[i] = reversed[len - 1 - i];
  return len;
}

static char *put(char *out, view_s text) {
  if (text.len)
    memcpy(out, text.data, text.len);
  return out + text.len;
}

size_t sse_event_size(const sse_event_s *e) {
  char digits[DIGITS_MAX];
  size_t n = 1; /* the empty line */
  if (e->id)
    n += sizeof "id: \n" - 1 + digits_of(e->id, digits);
  if (e->event.len)
    n += sizeof "event: \n" - 1 + e->event.len;
  view_s left = e->data;
  for (;;) {
    size_t next, len = line_of(left, &next);
    n += sizeof "data: \n" - 1 + len;
    if (next == len)
      return n;
    left = view_sub(left, next, left.len);
  }
}

char *sse_event_write(char *out, const sse_event_s *e) {
  if (e->id) {
    out = put(out, VIEW_LIT("id: "));
    out += digits_of(e->id, out);
    *out++ = '\n';
  }
  if (e->event.len) {
    out = put(out, VIEW_LIT("event: "));
    out = put(out, e->event);
    *out++ = '\n';
  }
  view_s left = e->data;
  for (;;) {
    size_t next, len = line_of(left, &next);
    out = put(out, VIEW_LIT("data: "));
    out = put(out, view_sub(left, 0, len));
    *out++ = '\n';
    if (next == len)
      break;
    left = view_sub(left, next, left.len);
  }
  *out++ = '\n';
  return out;
}

char *sse_cursor_write(char *out, uint64_t id) {
  out = put(out, VIEW_LIT("id: "));
  out += digits_of(id, out);
  return put(out, VIEW_LIT("\n\n"));
}
