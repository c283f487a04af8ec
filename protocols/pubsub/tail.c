/* tail.c - the ready frames of a run's last messages.
 *
 * Frames lie behind one another in chunks, each a shared buffer, never split,
 * each made once. An index from place to frame finds where a reader stands.
 * Invariant: bytes below a chunk's length never change or move, and a chunk is
 * dropped only when every reader has been offered what is in it: who still
 * lacks it then is slow, and finds the gap when it comes back.
 *
 * The limits: a tail keeps `size` bytes for slow readers, all tails `total`. A
 * tail that is over its size and not yet offered to all stops the delivery of
 * more (tail_can_grow), so a burst costs no quick reader a message. */
#include "pubsub_internal.h"

#define CHUNK_MIN 512u
#define CHUNK_MAX 65536u /* and no more than a part of a tail's size */
#define FRAMES_INLINE 8
#define KEEP_FRAMES 16 /* that a tail keeps beyond its size */

typedef struct chunk_s {
  list_s by_age; /* of all chunks of this process */
  struct chunk_s *next;
  tail_s *tail;
  uint64_t start; /* the place of its first byte */
  facil_buf_s *buf;
} chunk_s;

struct tail_s {
  run_s *run;
  chunk_s *oldest, *newest;
  size_t bytes;   /* of all chunks as allocated, and of the index */
  uint64_t start; /* the first place kept */
  uint64_t trimmed_id;
  frame_s *frames; /* a ring */
  uint32_t at, used, cap;
  bool has_origins;
  list_s idle; /* in the list of those that are read by all */
  list_s full; /* in the list of those that wait for their walk */
  frame_s inline_frames[FRAMES_INLINE];
};

static size_t size_limit = 256u << 10, total_limit = 64u << 20;
static size_t chunk_max = CHUNK_MAX;
static size_t total_bytes, tail_total;
static list_s by_age = {&by_age, &by_age};
static list_s idle = {&idle, &idle};
static list_s full = {&full, &full};
static bool has_rested; /* a turn has passed since their walks */

void tail_limits(size_t size, size_t total) {
  size_limit = size;
  total_limit = total;
  chunk_max = size / 4 < CHUNK_MIN   ? CHUNK_MIN
              : size / 4 > CHUNK_MAX ? CHUNK_MAX
                                     : size / 4;
}

static frame_s *frame_at(const tail_s *t, uint32_t i) {
  return &t->frames[(t->at + i) & (t->cap - 1)];
}

/* ---- making and dropping ----------------------------------------------- */

static tail_s *tail_new(run_s *run) {
  tail_s *t = malloc(sizeof *t);
  if (!t)
    return NULL;
  *t = (tail_s){.run = run,
                .start = run->end,
                .trimmed_id = run->channel->last_id,
                .cap = FRAMES_INLINE};
  t->frames = t->inline_frames;
  list_init(&t->idle);
  list_init(&t->full);
  run->tail = t;
  tail_total++;
  return t;
}

static void count_bytes(tail_s *t, size_t more, size_t less) {
  t->bytes += more - less;
  total_bytes += more - less;
}

static void chunk_free(chunk_s *c) {
  count_bytes(c->tail, 0, sizeof *c + sizeof *c->buf + c->buf->cap);
  list_remove(&c->by_age);
  facil_buf_unref(c->buf);
  free(c);
}

static void drop_oldest(tail_s *t) {
  chunk_s *c = t->oldest;
  uint64_t end = c->next ? c->next->start : t->run->end;
  while (t->used && frame_at(t, 0)->end <= end) {
    t->trimmed_id = frame_at(t, 0)->id;
    t->at = (t->at + 1) & (t->cap - 1);
    t->used--;
    count_bytes(t, 0, sizeof(frame_s));
  }
  t->start = end;
  t->oldest = c->next;
  if (!t->oldest)
    t->newest = NULL;
  chunk_free(c);
}

void tail_free(run_s *run) {
  tail_s *t = run->tail;
  if (!t)
    return;
  while (t->oldest)
    drop_oldest(t);
  list_remove(&t->idle);
  list_remove(&t->full);
  if (t->frames != t->inline_frames)
    free(t->frames);
  free(t);
  run->tail = NULL;
  tail_total--;
}

/* ---- the limits -------------------------------------------------------- */

static bool is_offered_to_all(const run_s *run) {
  return run->readers.left == 0;
}

static void wait_for_walk(tail_s *t) {
  if (list_empty(&t->full))
    list_push(&full, &t->full);
  has_rested = false;
}

/* Whether dropping the oldest chunk leaves the last KEEP_FRAMES: large messages
 * must not make every reader a slow one. */
static bool can_drop(const tail_s *t) {
  const chunk_s *next = t->oldest ? t->oldest->next : NULL;
  return next && t->used > KEEP_FRAMES &&
         frame_at(t, t->used - KEEP_FRAMES - 1)->end >= next->start;
}

static void trim(tail_s *t) {
  if (t->bytes <= size_limit || !can_drop(t))
    return;
  if (!is_offered_to_all(t->run)) {
    wait_for_walk(t);
    return;
  }
  while (t->bytes > size_limit && can_drop(t))
    drop_oldest(t);
}

/* Over the total the oldest chunks go first, whose ever they are. The oldest of
 * all is the oldest of its tail. */
static void trim_total(void) {
  while (total_bytes > total_limit && !list_empty(&by_age)) {
    tail_s *t = FACIL_CONTAINER(by_age.next, chunk_s, by_age)->tail;
    if (!is_offered_to_all(t->run)) {
      wait_for_walk(t);
      return;
    }
    drop_oldest(t);
  }
}

/* A quick reader that had something of its own to send when the walk came to it
 * takes the offer in the turn after: so one more is let pass. */
bool tail_can_grow(void) {
  list_s *l;
  for (l = full.next; l != &full; l = l->next)
    if (!is_offered_to_all(FACIL_CONTAINER(l, tail_s, full)->run))
      return false;
  if (!list_empty(&full) && !has_rested) {
    has_rested = true;
    return false;
  }
  while ((l = list_shift(&full)))
    trim(FACIL_CONTAINER(l, tail_s, full));
  return true;
}

/* ---- growing ----------------------------------------------------------- */

static int grow_index(tail_s *t) {
  uint32_t cap = t->cap * 2;
  frame_s *frames = malloc(cap * sizeof *frames);
  if (!frames)
    return -1;
  for (uint32_t i = 0; i < t->used; i++)
    frames[i] = *frame_at(t, i);
  if (t->frames != t->inline_frames)
    free(t->frames);
  t->frames = frames;
  t->at = 0;
  t->cap = cap;
  return 0;
}

static chunk_s *chunk_for(tail_s *t, size_t len) {
  chunk_s *last = t->newest;
  if (last && len <= last->buf->cap - last->buf->len)
    return last;
  size_t cap = last ? 2 * last->buf->cap : CHUNK_MIN;
  if (cap > chunk_max)
    cap = chunk_max;
  if (cap < len)
    cap = len;
  chunk_s *c = malloc(sizeof *c);
  facil_buf_s *buf = c ? facil_buf_new(cap) : NULL;
  if (!buf) {
    free(c);
    return NULL;
  }
  *c = (chunk_s){.tail = t, .start = t->run->end, .buf = buf};
  if (last)
    last->next = c;
  else
    t->oldest = c;
  t->newest = c;
  count_bytes(t, sizeof *c + sizeof *buf + cap, 0);
  list_push(&by_age, &c->by_age);
  return c;
}

void tail_lose(run_s *run) {
  tail_free(run);
  run->end++; /* a place that no frame fills: everyone is behind it */
}

void tail_append(run_s *run, const message_s *m) {
  tail_s *t = run->tail ? run->tail : tail_new(run);
  if (!t) {
    tail_lose(run);
    return;
  }
  trim(t);
  trim_total();
  size_t len = run->kind->frame_size(m);
  chunk_s *c = chunk_for(t, len);
  if (!c || (t->used == t->cap && grow_index(t) < 0)) {
    tail_lose(run);
    return;
  }
  run->kind->frame_write(m, c->buf->data + c->buf->len);
  c->buf->len += len;
  run->end += len;
  t->used++;
  count_bytes(t, sizeof(frame_s), 0);
  *frame_at(t, t->used - 1) = (frame_s){m->id, run->end, m->origin};
  t->has_origins |= m->origin != 0;
  if (t->bytes > size_limit)
    wait_for_walk(t); /* until this has been offered to all */
}

/* ---- reading ----------------------------------------------------------- */

uint64_t tail_start(const run_s *run) {
  return run->tail ? run->tail->start : run->end;
}

uint64_t tail_trimmed_id(const run_s *run) {
  return run->tail ? run->tail->trimmed_id : run->channel->last_id;
}

bool tail_has_origins(const run_s *run) {
  return run->tail && run->tail->has_origins;
}

const frame_s *tail_frame(const run_s *run, uint64_t at) {
  const tail_s *t = run->tail;
  uint32_t low = 0, high = t->used - 1;
  if (t->used > 1 && frame_at(t, high - 1)->end <= at)
    return frame_at(t, high); /* the last one: the usual case */
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    if (frame_at(t, mid)->end <= at)
      low = mid + 1;
    else
      high = mid;
  }
  return frame_at(t, low);
}

uint64_t tail_place(const run_s *run, uint64_t id) {
  const tail_s *t = run->tail;
  if (!t || !t->used || frame_at(t, t->used - 1)->id <= id)
    return run->end;
  uint32_t low = 0, high = t->used - 1; /* the first frame above `id` */
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    if (frame_at(t, mid)->id <= id)
      low = mid + 1;
    else
      high = mid;
  }
  return low ? frame_at(t, low - 1)->end : t->start;
}

const frame_s *tail_next(const run_s *run, const frame_s *f) {
  const tail_s *t = run->tail;
  return f + 1 == t->frames + t->cap ? t->frames : f + 1;
}

piece_s tail_piece(const run_s *run, uint64_t at, uint64_t to) {
  const chunk_s *c = run->tail->newest;
  if (at < c->start)
    for (c = run->tail->oldest; c->next && c->next->start <= at;)
      c = c->next;
  size_t from = (size_t)(at - c->start), len = c->buf->len - from;
  if (len > to - at)
    len = (size_t)(to - at);
  return (piece_s){c->buf->data + from, len, c->buf};
}

/* ---- the end ----------------------------------------------------------- */

void tail_read_by_all(run_s *run) {
  if (run->tail && list_empty(&run->tail->idle))
    list_push(&idle, &run->tail->idle);
}

/* Not at once: bytes of the last offer may still be looked at in this turn. */
void tail_turn(void) {
  list_s *l;
  while ((l = list_shift(&idle))) {
    tail_s *t = FACIL_CONTAINER(l, tail_s, idle);
    if (t->run->caught == t->run->readers.count)
      tail_free(t->run);
  }
}

void tail_count(size_t *tails, size_t *bytes) {
  *tails = tail_total;
  *bytes = total_bytes;
}
