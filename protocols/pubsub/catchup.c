/* catchup.c - readers that lack more than their tail keeps are brought up to
 * date from the store.
 *
 * What such a reader is offered is a slice: the next frames behind its cursor,
 * made from what the engine reads, at most SLICE_BYTES of them. A slice lives
 * from on_ready to on_sent and is made again if the socket took less, so a slow
 * reader holds no memory; slices of one channel are shared by all readers that
 * stand at the same cursor in the same turn, so a storm of reconnects reads
 * once.
 *
 * A reader of several channels with one cursor ("merged"), and one of patterns
 * that may overlap, gets them in one order of ids; others catch up channel by
 * channel. Invariant: the cursor moves by frames that have left and by gaps
 * that were told, and by nothing else. */
#include "pubsub_internal.h"
#include <errno.h>

#define SLICE_BYTES 65536u
#define SLICE_FRAMES 1000u
#define CACHE_MAX 32

typedef struct {
  uint64_t id;
  size_t start, end; /* in the bytes of the slice */
} piece_of_slice_s;

struct slice_s {
  uint32_t refs;
  const reader_kind_s *kind;
  const channel_s *channel; /* NULL: of a merged reader, not shared */
  uint64_t since, gap_from, gap_to, cursor;
  subscription_s *sub; /* that the gap is of, in a merged reader */
  bool has_more;
  facil_buf_s *buf; /* NULL: no frames */
  size_t count;
  piece_of_slice_s frames[];
};

/* Where a slice is gathered. */
static struct {
  const reader_kind_s *kind;
  const channel_s *pattern; /* only what it matches; NULL: everything */
  const reader_s *reader;   /* not what it has got another way; NULL: all */
  const subscription_s *sub;
  char *bytes;
  size_t len, cap;
  piece_of_slice_s frames[SLICE_FRAMES * 2];
  size_t count, limit;
  bool is_full, is_short_of_memory;
  uint64_t full_at; /* all up to this id was gathered */
} gather;

static slice_s *cache[CACHE_MAX];
static size_t cache_count;
static slice_s *just_sent; /* sock takes the rest of a frame after on_sent */

/* ---- slices ------------------------------------------------------------ */

static void slice_unref(slice_s *sl) {
  if (!sl || --sl->refs)
    return;
  facil_buf_unref(sl->buf);
  free(sl);
}

void catchup_forget(void) {
  while (cache_count)
    slice_unref(cache[--cache_count]);
  slice_unref(just_sent);
  just_sent = NULL;
}

static bool has_room(size_t len) {
  if (len <= gather.cap - gather.len)
    return true;
  size_t cap = 2 * gather.cap + len;
  char *bigger = realloc(gather.bytes, cap);
  if (!bigger)
    return false;
  gather.bytes = bigger;
  gather.cap = cap;
  return true;
}

/* Whether another subscription of the reader has given it this message: an id
 * that comes by a channel and by a pattern goes once. */
static bool was_given(const message_s *m) {
  const subscription_s *t = gather.reader ? gather.reader->subs : NULL;
  for (; t; t = t->next) {
    const channel_s *c = t->run->channel;
    if (t != gather.sub && t->start < m->id && m->id <= t->cursor &&
        (c->is_pattern ? pattern_matches(channel_name(c), m->channel)
                       : view_eq(channel_name(c), m->channel)))
      return true;
  }
  return false;
}

/* One message that was read becomes a frame. */
static bool gather_one(void *arg, const message_s *m) {
  (void)arg;
  if (gather.pattern &&
      !pattern_matches(channel_name(gather.pattern), m->channel))
    return true;
  if (was_given(m))
    return true;
  size_t len = gather.kind->frame_size(m);
  if (gather.count == gather.limit ||
      (gather.count && gather.len + len > 2 * SLICE_BYTES)) {
    gather.is_full = true;
    gather.full_at = m->id - 1;
    return false;
  }
  if (!has_room(len)) {
    gather.is_short_of_memory = true;
    return false;
  }
  gather.kind->frame_write(m, gather.bytes + gather.len);
  gather.frames[gather.count++] =
      (piece_of_slice_s){m->id, gather.len, gather.len + len};
  gather.len += len;
  return true;
}

static void gather_begin(const reader_kind_s *kind) {
  gather.kind = kind;
  gather.reader = NULL;
  gather.len = gather.count = 0;
  gather.is_short_of_memory = false;
}

/* Read what a subscription lacks behind `since`: one of `part` parts. */
static int gather_from(const subscription_s *s, uint64_t since, size_t part,
                       engine_read_s *out) {
  const channel_s *c = s->run->channel;
  engine_limit_s limit = {SLICE_FRAMES / part + 1, SLICE_BYTES / part};
  gather.sub = s;
  gather.pattern = c->is_pattern ? c : NULL;
  gather.is_full = false;
  gather.limit = gather.count + SLICE_FRAMES / part;
  int r = c->is_pattern ? engine->read_all(channel_name(c), since, limit,
                                           gather_one, NULL, out)
                        : engine->read(channel_name(c), since, limit,
                                       gather_one, NULL, out);
  if (r < 0 || gather.is_short_of_memory)
    return -1;
  if (gather.is_full) { /* it ends before what was not taken */
    out->cursor = gather.full_at;
    out->has_more = true;
  }
  return 0;
}

static int by_id(const void *a, const void *b) {
  const piece_of_slice_s *x = a, *y = b;
  return x->id < y->id ? -1 : x->id > y->id;
}

/* The frames up to id `until`, each id once, as one buffer. */
static slice_s *slice_of_gathered(uint64_t until) {
  slice_s *sl = malloc(sizeof *sl + gather.count * sizeof *sl->frames);
  if (!sl)
    return NULL;
  *sl = (slice_s){.refs = 1, .kind = gather.kind};
  if (gather.len && !(sl->buf = facil_buf_new(gather.len))) {
    free(sl);
    return NULL;
  }
  uint64_t last = 0;
  for (size_t i = 0; i < gather.count; i++) {
    piece_of_slice_s f = gather.frames[i];
    if (f.id > until || f.id == last)
      continue;
    size_t start = sl->buf->len;
    facil_buf_add(sl->buf, gather.bytes + f.start, f.end - f.start);
    sl->frames[sl->count++] = (piece_of_slice_s){f.id, start, sl->buf->len};
    last = f.id;
  }
  return sl;
}

/* ---- one channel --------------------------------------------------------- */

static slice_s *cached(const reader_kind_s *kind, const channel_s *c,
                       uint64_t since) {
  for (size_t i = 0; i < cache_count; i++) {
    slice_s *sl = cache[i];
    if (sl->kind == kind && sl->channel == c && sl->since == since) {
      sl->refs++;
      return sl;
    }
  }
  return NULL;
}

static slice_s *slice_of(reader_s *r, subscription_s *s) {
  const channel_s *c = s->run->channel;
  slice_s *sl = cached(r->kind, c, s->cursor);
  if (sl)
    return sl;
  engine_read_s got;
  gather_begin(r->kind);
  if (gather_from(s, s->cursor, 1, &got) < 0)
    return NULL;
  sl = slice_of_gathered(UINT64_MAX);
  if (!sl)
    return NULL;
  sl->channel = c;
  sl->since = s->cursor;
  sl->gap_from = got.gap_from;
  sl->gap_to = s->cursor ? got.gap_to : 0; /* 0: all that there is */
  sl->cursor = got.cursor;
  sl->has_more = got.has_more;
  if (cache_count < CACHE_MAX) {
    sl->refs++;
    cache[cache_count++] = sl;
  }
  return sl;
}

/* ---- several channels in one order --------------------------------------- */

static uint64_t since_of(const reader_s *r, const subscription_s *s) {
  return r->is_merged && s->cursor < r->cursor ? r->cursor : s->cursor;
}

static void gather_begin_of(const reader_s *r) {
  gather_begin(r->kind);
  gather.reader = r->is_merged ? NULL : r;
}

static bool has_gathered(uint64_t until) {
  bool has = false;
  for (size_t i = 0; i < gather.count && !has; i++)
    has = gather.frames[i].id <= until;
  return has;
}

/* The oldest of all had no room: it goes alone. */
static slice_s *slice_of_next(const reader_s *r, const subscription_s *s,
                              uint64_t since) {
  engine_read_s got;
  gather_begin_of(r);
  if (gather_from(s, since, SLICE_FRAMES, &got) < 0)
    return NULL;
  slice_s *sl = slice_of_gathered(UINT64_MAX);
  if (sl) {
    sl->cursor = sl->count ? sl->frames[sl->count - 1].id : got.cursor;
    sl->has_more = true;
  }
  return sl;
}

static slice_s *slice_of_all(reader_s *r) {
  engine_read_s got;
  uint64_t until = UINT64_MAX, end = 0;
  const subscription_s *tight = NULL; /* that `until` is of */
  bool is_full = false;
  gather_begin_of(r);
  for (subscription_s *s = r->subs; s; s = s->next) {
    uint64_t since = since_of(r, s);
    if (gather_from(s, since, r->count, &got) < 0)
      return NULL;
    if (got.gap_to && since) { /* told before anything else is sent */
      gather_begin(r->kind);
      slice_s *gap = slice_of_gathered(0);
      if (gap) {
        gap->gap_from = got.gap_from;
        gap->gap_to = got.gap_to;
        gap->sub = s;
      }
      return gap;
    }
    if (got.has_more && got.cursor < until) {
      until = got.cursor;
      tight = s;
      is_full = gather.is_full;
    }
    if (got.cursor > end)
      end = got.cursor;
  }
  if (is_full && !has_gathered(until))
    return slice_of_next(r, tight, until);
  qsort(gather.frames, gather.count, sizeof *gather.frames, by_id);
  slice_s *sl = slice_of_gathered(until);
  if (sl) {
    sl->cursor = tight ? until : end;
    sl->has_more = tight != NULL;
  }
  return sl;
}

/* ---- the reader -----------------------------------------------------------
 */

/* The cursor has come to `id`: the reader stands in the tail again if that
 * keeps what follows. */
static void move_to(reader_s *r, subscription_s *s, uint64_t id) {
  if (!r->is_merged && !reader_overlaps(r)) {
    s->cursor = id;
    reader_settle(r, s);
    return;
  }
  if (id > r->cursor)
    r->cursor = id;
  for (s = r->subs; s; s = s->next) {
    if (id > s->cursor)
      s->cursor = id;
    reader_settle(r, s);
  }
}

static void tell(reader_s *r, subscription_s *s, const slice_s *sl) {
  uint64_t from = sl->gap_from, to = sl->gap_to;
  s->cursor = to;
  if (!r->is_merged)
    reader_settle(r, s);
  r->kind->on_gap(r, channel_name(s->run->channel), from, to, false);
  sock_want_ready(r->uuid);
}

void catchup_ready(reader_s *r, subscription_s *s) {
  bool is_joint = r->is_merged || reader_overlaps(r);
  slice_s *sl = is_joint ? slice_of_all(r) : slice_of(r, s);
  if (!sl) {
    sock_abort(r->uuid, "the store cannot be read");
    return;
  }
  if (sl->gap_to) {
    tell(r, sl->sub ? sl->sub : s, sl);
  } else if (!sl->count) {
    move_to(r, s, sl->cursor);
    sock_want_ready(r->uuid);
  } else {
    struct iovec iov = {sl->buf->data, sl->buf->len};
    if (sock_offer(r->uuid, &iov, &sl->buf, 1) == 0) {
      r->slice = sl;
      r->slice_of = s;
      return;
    }
    sock_abort(r->uuid, "offer");
  }
  slice_unref(sl);
}

/* The frame that the byte before `sent` belongs to. */
static size_t frame_of(const slice_s *sl, size_t sent) {
  size_t low = 0, high = sl->count - 1;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (sl->frames[mid].end < sent)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

size_t catchup_sent(reader_s *r, size_t sent) {
  slice_s *sl = r->slice;
  subscription_s *s = r->slice_of;
  size_t rest = 0;
  r->slice = NULL;
  if (sent) {
    size_t i = frame_of(sl, sent);
    bool is_last = i == sl->count - 1;
    rest = sl->frames[i].end - sent;
    move_to(r, s, is_last ? sl->cursor : sl->frames[i].id);
  }
  sock_want_ready(r->uuid);
  slice_unref(just_sent);
  just_sent = sl;
  return rest;
}

void catchup_drop(reader_s *r) {
  slice_unref(r->slice);
  r->slice = NULL;
}
