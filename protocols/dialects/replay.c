/* replay.c - messages that are kept, gathered as JSON: of one channel, or of
 * several and patterns in one order. Invariant: what lies above `since` and is
 * not gathered lies above the cursor, or in the gap. */
#include "replay.h"
#include "json_text.h"
#include "message_json.h"
#include <stdlib.h>

/* What is read at once of all channels, and how often, in search of what a
 * pattern matches: the rest is for the next request. */
#define SCAN_MESSAGES 1000u
#define SCAN_ROUNDS 8

/* ---- gathering ------------------------------------------------------------
 */

static bool reserve(void **p, size_t *cap, size_t need, size_t size) {
  if (need <= *cap)
    return true;
  size_t more = *cap * 2 > need ? *cap * 2 : need;
  void *bigger = realloc(*p, more * size);
  if (!bigger)
    return false;
  *p = bigger;
  *cap = more;
  return true;
}

static bool take(void *arg, const message_s *m) {
  replay_s *a = arg;
  if (a->pattern.len && !pattern_matches(a->pattern, m->channel))
    return true;
  size_t len = message_json_size(m, false);
  void *text = a->text, *items = a->items;
  a->has_failed = !reserve(&text, &a->cap, a->len + len, 1);
  a->text = text;
  if (a->has_failed)
    return false;
  a->has_failed =
      !reserve(&items, &a->item_cap, a->count + 1, sizeof *a->items);
  a->items = items;
  if (a->has_failed)
    return false;
  message_json_write(a->text + a->len, m, false);
  a->items[a->count++] = (replay_item_s){m->id, a->len, a->len + len};
  a->len += len;
  return true;
}

static int by_id(const void *x, const void *y) {
  const replay_item_s *a = x, *b = y;
  return a->id < b->id ? -1 : a->id > b->id;
}

/* Each id once, in order, none above `until`, no more than `limit`. */
static void arrange(replay_s *a, uint64_t until, size_t limit) {
  size_t n = 0;
  if (a->count)
    qsort(a->items, a->count, sizeof *a->items, by_id);
  for (size_t i = 0; i < a->count; i++) {
    replay_item_s item = a->items[i];
    if (n && a->items[n - 1].id == item.id)
      continue;
    if (item.id > until)
      break;
    if (n == limit) {
      a->has_more = true;
      a->cursor = a->items[n - 1].id;
      break;
    }
    a->items[n++] = item;
  }
  a->count = n;
}

/* Messages that the pattern does not match count for nothing but the time that
 * they take. */
static int read_pattern(uint64_t since, engine_limit_s limit, replay_s *a,
                        engine_read_s *out) {
  const engine_s *engine = pubsub_engine();
  engine_limit_s scan = {SCAN_MESSAGES, limit.bytes};
  engine_read_s got;
  size_t most = a->count + limit.messages, bytes = a->len;
  int r = engine->read_all(a->pattern, since, scan, take, a, out);
  for (int i = 1; i < SCAN_ROUNDS && !r && !a->has_failed && out->has_more &&
                  a->count < most && a->len - bytes < limit.bytes;
       i++) {
    r = engine->read_all(a->pattern, out->cursor, scan, take, a, &got);
    if (got.gap_to && !out->gap_to)
      out->gap_from = got.gap_from;
    if (got.gap_to)
      out->gap_to = got.gap_to;
    out->cursor = got.cursor;
    out->has_more = got.has_more;
  }
  return r;
}

int replay_read(const view_s *names, size_t count, uint64_t since,
                engine_limit_s limit, replay_s *a) {
  const engine_s *engine = pubsub_engine();
  uint64_t until = UINT64_MAX;
  for (size_t i = 0; i < count; i++) {
    engine_read_s got;
    bool is_pattern = memchr(names[i].data, '*', names[i].len) != NULL;
    a->pattern = is_pattern ? names[i] : view_of(NULL, 0);
    int r = is_pattern ? read_pattern(since, limit, a, &got)
                       : engine->read(names[i], since, limit, take, a, &got);
    if (r < 0 || a->has_failed)
      return -1;
    if (got.gap_to && since && !a->is_new) {
      if (!a->gap_to || got.gap_from < a->gap_from)
        a->gap_from = got.gap_from;
      if (got.gap_to > a->gap_to)
        a->gap_to = got.gap_to;
    }
    a->has_more |= got.has_more;
    if (got.has_more && got.cursor < until)
      until = got.cursor;
    if (got.cursor > a->cursor)
      a->cursor = got.cursor;
  }
  if (until < a->cursor)
    a->cursor = until;
  arrange(a, until, limit.messages);
  return 0;
}

void replay_free(replay_s *a) {
  free(a->text);
  free(a->items);
}

static char *put_gap(char *out, const replay_s *a) {
  if (!a->gap_to)
    return json_raw(out, VIEW_LIT("null"));
  out = json_raw(out, VIEW_LIT("{\"from\":"));
  out += number_write(out, a->gap_from);
  out = json_raw(out, VIEW_LIT(",\"to\":"));
  out += number_write(out, a->gap_to);
  return json_raw(out, VIEW_LIT("}"));
}

size_t replay_json_max(const replay_s *a) {
  return a->len + a->count + 256;
}

char *replay_json_write(char *out, const replay_s *a) {
  out = json_raw(out, VIEW_LIT("\"messages\":["));
  for (size_t i = 0; i < a->count; i++) {
    if (i)
      *out++ = ',';
    out = json_raw(out, view_of(a->text + a->items[i].start,
                                a->items[i].end - a->items[i].start));
  }
  out = json_raw(out, VIEW_LIT("],\"cursor\":"));
  out += number_write(out, a->cursor);
  out = json_raw(out, VIEW_LIT(",\"gap\":"));
  out = put_gap(out, a);
  return json_raw(out, a->has_more ? VIEW_LIT(",\"more\":true")
                                   : VIEW_LIT(",\"more\":false"));
}
