/* since.c - where to begin. An id may also be any moment in time: ids are
 * microseconds of the broker's clock. */
#include "since.h"

#define DIGITS 16 /* ids are below 2^53 */

bool since_read(view_s text, since_s *since) {
  *since = (since_s){.what = SINCE_NOW};
  if (view_eq(text, VIEW_LIT("now")))
    return true;
  since->what = SINCE_FIRST;
  if (view_eq(text, VIEW_LIT("first")))
    return true;
  since->what = SINCE_ID;
  if (text.len && text.data[0] == '-') {
    since->what = SINCE_LAST;
    text = view_sub(text, 1, text.len);
  }
  if (!text.len || text.len > DIGITS)
    return false;
  for (size_t i = 0; i < text.len; i++) {
    if (text.data[i] < '0' || text.data[i] > '9')
      return false;
    since->n = since->n * 10 + (uint64_t)(text.data[i] - '0');
  }
  return true;
}

typedef struct {
  const view_s *names;
  size_t count;
} wanted_s;

static bool is_wanted(void *arg, const message_s *m) {
  const wanted_s *w = arg;
  for (size_t i = 0; i < w->count; i++)
    if (view_eq(w->names[i], m->channel) ||
        pattern_matches(w->names[i], m->channel))
      return true;
  return false;
}

static uint64_t last_of(size_t n, const view_s *names, size_t count,
                        uint64_t now) {
  uint64_t cursor = now;
  wanted_s wanted = {names, count};
  const engine_s *engine = pubsub_engine();
  bool is_one = count == 1 && !memchr(names->data, '*', names->len);
  int r = is_one ? engine->last(*names, n, &cursor)
                 : engine->last_all(n, is_wanted, &wanted, &cursor);
  return r < 0 ? now : cursor;
}

uint64_t since_cursor(const since_s *since, const view_s *names, size_t count,
                      uint64_t now) {
  switch (since->what) {
  case SINCE_ID:
    return since->n ? since->n : 1; /* ids begin above */
  case SINCE_FIRST:
    return 0;
  case SINCE_LAST:
    return since->n ? last_of(since->n, names, count, now) : now;
  default:
    return now;
  }
}
