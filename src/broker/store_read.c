/* store_read.c - reading, in slices.
 *
 * Invariants:
 * - what is given and the gap before it are of one moment: the mark is read in
 *   the transaction of the messages, and again in each slice; if messages went
 *   away between two slices, the read ends before the hole and the next one
 *   tells it;
 * - what ended by age counts as trimmed, whether it was removed or not, and
 *   what ended by its own ttl as never there;
 * - while a transaction is open its start lies in shared memory. */
#include "store_shared.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { SLICE_US = 1000 };

/* --- Slices --- */

typedef struct {
  store_s *s;
  lane_s *lane;
  reading_s *reading;
  state_s state;
  uint64_t now;      /* the broker's clock */
  uint64_t until_us; /* of CLOCK_MONOTONIC: the end of the slice */
} slice_s;

static uint64_t mono_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static reading_s *reading_at(const store_s *s, int i) {
  size_t at = (size_t)s->setup.slot * STORE_READERS + (size_t)i;
  return &s->shared->readings[at];
}

/* A lane of this process that nobody reads in. */
static int slice_init(slice_s *c, store_s *s) {
  for (int i = 0; i < STORE_READERS; i++) {
    uint64_t none = 0;
    c->reading = reading_at(s, i);
    c->lane = &s->lanes[i];
    c->s = s;
    if (atomic_compare_exchange_strong(&c->reading->since_ms, &none,
                                       store_mono_ms() | 1))
      return 0;
  }
  return EAGAIN;
}

static int txn_renew(slice_s *c) {
  return c->lane->txn
             ? mdb_txn_renew(c->lane->txn)
             : mdb_txn_begin(c->s->env, NULL, MDB_RDONLY, &c->lane->txn);
}

/* The file may have grown, or the dead may have taken all places. */
static int txn_renew_again(slice_s *c, int rc) {
  int count;
  if (rc == MDB_MAP_RESIZED && !c->s->shared->is_durable)
    rc = env_map(c->s, c->s->shared->config.size);
  else if (rc == MDB_READERS_FULL)
    rc = mdb_reader_check(c->s->env, &count);
  return rc ? rc : txn_renew(c);
}

static void slice_end(slice_s *c) {
  if (c->lane->txn)
    mdb_txn_reset(c->lane->txn);
}

static int slice_begin(slice_s *c) {
  if (!c->s->env)
    return EIO;
  uint64_t us = mono_us();
  atomic_store(&c->reading->since_ms, us / 1000 | 1);
  c->until_us = us + SLICE_US;
  c->now = c->s->setup.clock(c->s->setup.arg);
  int rc = txn_renew(c);
  if (rc)
    rc = txn_renew_again(c, rc);
  if (!rc)
    rc = state_get(c->lane->txn, c->s->dbi[TABLE_MAIN], &c->state);
  return rc;
}

static void slice_fini(slice_s *c) {
  slice_end(c);
  atomic_store(&c->reading->since_ms, 0);
}

static bool slice_is_over(const slice_s *c) {
  return mono_us() >= c->until_us;
}

static int slice_cursor(slice_s *c, table_e table, MDB_cursor **out) {
  MDB_cursor **at = &c->lane->cursors[table];
  *out = *at;
  if (*at)
    return mdb_cursor_renew(c->lane->txn, *at);
  int rc = mdb_cursor_open(c->lane->txn, c->s->dbi[table], at);
  *out = *at;
  return rc;
}

static int answer(int code) {
  if (code == 0)
    return 0;
  errno = store_errno(code);
  return -1;
}

/* All that reads does so between these two. */
static int read_enter(slice_s *c, store_s *s) {
  pthread_rwlock_rdlock(&s->env_lock);
  int rc = slice_init(c, s);
  if (rc)
    pthread_rwlock_unlock(&s->env_lock);
  return rc;
}

static int read_leave(slice_s *c, int rc) {
  slice_fini(c);
  pthread_rwlock_unlock(&c->s->env_lock);
  return answer(rc);
}

int store_committed(store_s *s, uint64_t *committed) {
  slice_s c;
  int rc = read_enter(&c, s);
  if (rc)
    return rc;
  rc = slice_begin(&c);
  if (!rc)
    *committed = c.state.committed;
  slice_fini(&c);
  pthread_rwlock_unlock(&s->env_lock);
  return rc;
}

/* --- Messages --- */

static int get(slice_s *c, table_e table, view_s name, MDB_val *data) {
  MDB_val key = val_of(name);
  return mdb_get(c->lane->txn, c->s->dbi[table], &key, data);
}

static int record_get(slice_s *c, view_s name, chan_s *out) {
  MDB_val data;
  int rc = get(c, TABLE_CHANNELS, name, &data);
  if (!rc && data.mv_size != sizeof *out)
    rc = MDB_CORRUPTED;
  if (!rc)
    memcpy(out, data.mv_data, sizeof *out);
  return rc;
}

static int scratch_room(lane_s *l, size_t n) {
  if (n <= l->scratch_cap)
    return 0;
  char *bigger = realloc(l->scratch, n);
  if (!bigger)
    return ENOMEM;
  l->scratch = bigger;
  l->scratch_cap = n;
  return 0;
}

/* The other pieces behind the first one. */
static int pieces_join(slice_s *c, view_s name, uint64_t id, size_t bytes,
                       MDB_val *first) {
  int rc = scratch_room(c->lane, bytes);
  if (rc)
    return rc;
  char *to = c->lane->scratch;
  memcpy(to, first->mv_data, first->mv_size);
  size_t at = first->mv_size;
  for (uint32_t i = 1; at < bytes; i++) {
    wkey_s k = message_key(name, id);
    key_piece(&k, i);
    MDB_val data;
    rc = get(c, TABLE_MESSAGES, view_of(k.bytes, k.len), &data);
    if (rc || data.mv_size == 0 || data.mv_size > bytes - at)
      return rc ? rc : MDB_CORRUPTED;
    memcpy(to + at, data.mv_data, data.mv_size);
    at += data.mv_size;
  }
  *first = (MDB_val){bytes, to};
  return 0;
}

static int head_of(MDB_val data, head_s *h) {
  if (data.mv_size < sizeof *h)
    return MDB_CORRUPTED;
  memcpy(h, data.mv_data, sizeof *h);
  return 0;
}

/* `data` is its first piece. */
static int message_open(slice_s *c, view_s name, uint64_t id, MDB_val data,
                        stored_s *out) {
  head_s h;
  int rc = head_of(data, &h);
  if (!rc && message_bytes(&h) > data.mv_size)
    rc = pieces_join(c, name, id, message_bytes(&h), &data);
  if (rc)
    return rc;
  const char *p = (const char *)data.mv_data + sizeof h;
  *out = (stored_s){.id = id, .expires = h.expires, .kind = h.kind};
  out->channel = name;
  out->type = view_of(p, h.type);
  out->event = view_of(p + h.type, h.event);
  out->body = view_of(p + h.type + h.event, h.body);
  return 0;
}

static bool has_ended(const slice_s *c, const head_s *h) {
  return h->expires && h->expires <= c->now;
}

/* What has an id up to it is too old. */
static uint64_t age_mark(const slice_s *c, const rule_s *rule) {
  return rule->age_us && rule->age_us <= c->now ? c->now - rule->age_us : 0;
}

/* --- The mark of a channel --- */

/* The highest id up to `most` and above `least` that a subscriber would have
 * got, had it not become too old; or 0. */
static int aged_mark(slice_s *c, view_s name, uint64_t least, uint64_t most,
                     uint64_t *out) {
  MDB_cursor *cursor;
  MDB_val data;
  wkey_s k = message_key(name, most + 1);
  MDB_val key = key_val(&k);
  *out = 0;
  int rc = slice_cursor(c, TABLE_MESSAGES, &cursor);
  if (!rc)
    rc = mdb_cursor_get(cursor, &key, &data, MDB_SET_RANGE);
  rc = rc == MDB_NOTFOUND ? mdb_cursor_get(cursor, &key, &data, MDB_LAST)
       : rc               ? rc
                          : mdb_cursor_get(cursor, &key, &data, MDB_PREV);
  while (!rc && is_of_channel(key, name) && message_id(key, name) > least) {
    head_s h = {0};
    bool is_piece = key.mv_size != name.len + 9;
    rc = is_piece ? 0 : head_of(data, &h);
    if (!rc && !is_piece && !has_ended(c, &h)) {
      *out = message_id(key, name);
      return 0;
    }
    if (!rc)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_PREV);
  }
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* A cursor below it has a gap. */
static int mark_of(slice_s *c, view_s name, const chan_s *record,
                   uint64_t *out) {
  uint64_t mark = record ? record->trim : c->state.forgotten;
  if (mark < c->state.birth)
    mark = c->state.birth;
  *out = mark;
  const rule_s *rule = rules_find(c->s->shared->config.rules, name);
  uint64_t old = age_mark(c, rule), aged = 0;
  if (!record || !record->count || old <= mark)
    return 0;
  int rc = aged_mark(c, name, mark, old, &aged);
  if (aged > mark)
    *out = aged;
  return rc;
}

static int channel_mark(slice_s *c, view_s name, chan_s *record, bool *exists,
                        uint64_t *mark) {
  int rc = record_get(c, name, record);
  *exists = rc == 0;
  if (rc && rc != MDB_NOTFOUND)
    return rc;
  return mark_of(c, name, *exists ? record : NULL, mark);
}

/* --- A read --- */

typedef struct {
  slice_s slice;
  view_s channel; /* of store_read */
  uint64_t position, until, oldest;
  store_limit_s left;
  store_each_f each;
  void *arg;
  store_result_s *out;
  bool has_begun, is_over;
} read_s;

static void read_init(read_s *r, uint64_t since, uint64_t until,
                      store_limit_s limit, store_each_f each, void *arg,
                      store_result_s *out) {
  *out = (store_result_s){.cursor = since};
  *r = (read_s){.position = since, .until = until, .left = limit};
  r->each = each;
  r->arg = arg;
  r->out = out;
}

/* The mark of this slice: a gap before all, or a hole that ends the read. */
static void read_mark(read_s *r, uint64_t mark) {
  uint64_t to = mark < r->until ? mark : r->until;
  if (r->position < to && r->has_begun) {
    r->out->has_more = true;
    r->is_over = true;
  } else if (r->position < to) {
    r->out->gap_from = r->position + 1;
    r->out->gap_to = to;
    r->position = to;
  }
  r->has_begun = true;
}

/* One message; what the limits do not allow is left for the next read. */
static int read_give(read_s *r, view_s name, uint64_t id, MDB_val data) {
  stored_s m;
  head_s h;
  int rc = head_of(data, &h);
  if (rc || has_ended(&r->slice, &h)) {
    r->position = id;
    return rc;
  }
  bool is_first = r->out->messages == 0;
  if (r->left.messages == 0 || (!is_first && h.body > r->left.bytes)) {
    r->out->has_more = true;
    r->is_over = true;
    return 0;
  }
  rc = message_open(&r->slice, name, id, data, &m);
  if (rc)
    return rc;
  r->position = id;
  r->left.messages--;
  r->left.bytes -= h.body < r->left.bytes ? h.body : r->left.bytes;
  r->out->messages++;
  r->out->bytes += h.body;
  if (!r->each(r->arg, &m)) {
    r->out->has_more = true;
    r->is_over = true;
  }
  return 0;
}

static void read_end(read_s *r) {
  if (r->position < r->until)
    r->position = r->until;
  r->is_over = true;
}

static int read_loop(read_s *r, store_s *s, int (*slice)(read_s *r)) {
  if (r->position >= r->until)
    return 0;
  int rc = read_enter(&r->slice, s);
  if (rc)
    return answer(rc);
  while (!rc && !r->is_over) {
    rc = slice_begin(&r->slice);
    if (!rc)
      rc = slice(r);
    slice_end(&r->slice);
  }
  r->out->cursor = r->position;
  return read_leave(&r->slice, rc);
}

/* --- Of one channel --- */

static int channel_slice(read_s *r) {
  slice_s *c = &r->slice;
  chan_s record;
  bool exists;
  uint64_t mark;
  int rc = channel_mark(c, r->channel, &record, &exists, &mark);
  if (rc)
    return rc;
  read_mark(r, mark);
  if (r->is_over || r->position >= r->until) {
    r->is_over = true;
    return 0;
  }
  MDB_cursor *cursor;
  MDB_val data;
  wkey_s k = message_key(r->channel, r->position + 1);
  MDB_val key = key_val(&k);
  rc = slice_cursor(c, TABLE_MESSAGES, &cursor);
  if (!rc)
    rc = mdb_cursor_get(cursor, &key, &data, MDB_SET_RANGE);
  while (!rc && !r->is_over && is_of_channel(key, r->channel) &&
         message_id(key, r->channel) <= r->until) {
    if (key.mv_size == r->channel.len + 9) {
      rc = read_give(r, r->channel, message_id(key, r->channel), data);
      if (!rc && !r->is_over && slice_is_over(c))
        return 0;
    }
    if (!rc && !r->is_over)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT);
  }
  if (!r->is_over && (rc == 0 || rc == MDB_NOTFOUND))
    read_end(r);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int store_read(store_s *s, view_s channel, uint64_t since, uint64_t until,
               store_limit_s limit, store_each_f each, void *arg,
               store_result_s *out) {
  read_s r;
  read_init(&r, since, until, limit, each, arg, out);
  r.channel = channel;
  return read_loop(&r, s, channel_slice);
}

/* --- Of all channels --- */

/* Whether a message of `name` is there for readers; *data is its first piece.
 */
static int live_get(read_s *r, view_s name, uint64_t id, MDB_val *data,
                    bool *is_live) {
  slice_s *c = &r->slice;
  wkey_s k = message_key(name, id);
  int rc = get(c, TABLE_MESSAGES, view_of(k.bytes, k.len), data);
  const rule_s *rule = rules_find(c->s->shared->config.rules, name);
  *is_live = id > age_mark(c, rule);
  if (rc || !*is_live || !c->state.dead)
    return rc;
  chan_s record;
  rc = record_get(c, name, &record);
  *is_live = !rc && id > record.trim;
  return rc;
}

static uint64_t all_mark(const slice_s *c) {
  uint64_t age = rules_shortest_age(c->s->shared->config.rules);
  uint64_t old = age <= c->now ? c->now - age : 0;
  uint64_t mark = c->state.trimmed;
  if (mark < c->state.birth)
    mark = c->state.birth;
  return old > mark ? old : mark;
}

/* The marks are of all channels: what it has given stays right, so only a mark
 * that moved can make a hole. */
static void all_marked(read_s *r) {
  uint64_t mark = all_mark(&r->slice);
  uint64_t to = mark < r->until ? mark : r->until;
  if (!r->has_begun && r->position < to) {
    r->out->gap_from = r->position + 1;
    r->out->gap_to = to;
  }
  if (!r->has_begun)
    r->oldest = mark;
  else if (mark > r->oldest && mark > r->position) {
    r->out->has_more = true;
    r->is_over = true;
  }
  r->has_begun = true;
}

static int id_give(read_s *r, uint64_t id, MDB_val name) {
  MDB_val data;
  bool is_live;
  view_s channel = view_val(name);
  int rc = live_get(r, channel, id, &data, &is_live);
  if (rc)
    return rc == MDB_NOTFOUND ? MDB_CORRUPTED : rc;
  if (is_live)
    return read_give(r, channel, id, data);
  r->position = id;
  return 0;
}

static int all_slice(read_s *r) {
  MDB_cursor *cursor;
  MDB_val data;
  wkey_s k;
  k.len = 0;
  key_u64(&k, r->position + 1);
  MDB_val key = key_val(&k);
  all_marked(r);
  int rc = slice_cursor(&r->slice, TABLE_IDS, &cursor);
  if (!rc && !r->is_over)
    rc = mdb_cursor_get(cursor, &key, &data, MDB_SET_RANGE);
  while (!rc && !r->is_over && view_u64(key.mv_data) <= r->until) {
    rc = id_give(r, view_u64(key.mv_data), data);
    if (!rc && !r->is_over && slice_is_over(&r->slice))
      return 0;
    if (!rc && !r->is_over)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT);
  }
  if (!r->is_over && (rc == 0 || rc == MDB_NOTFOUND))
    read_end(r);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int store_read_all(store_s *s, uint64_t since, uint64_t until,
                   store_limit_s limit, store_each_f each, void *arg,
                   store_result_s *out) {
  read_s r;
  read_init(&r, since, until, limit, each, arg, out);
  return read_loop(&r, s, all_slice);
}

/* --- The last N: backwards --- */

typedef struct {
  slice_s slice;
  view_s channel;
  uint64_t position; /* the lowest id that was looked at; UINT64_MAX: none */
  uint64_t since;
  size_t left;
  store_each_f is_wanted;
  void *arg;
  bool is_over;
} last_s;

static void last_take(last_s *l, uint64_t id) {
  l->since = id - 1;
  l->is_over = --l->left == 0;
}

/* The entry before `key`. */
static int cursor_before(MDB_cursor *cursor, MDB_val *key, MDB_val *data) {
  int rc = mdb_cursor_get(cursor, key, data, MDB_SET_RANGE);
  if (rc == MDB_NOTFOUND)
    return mdb_cursor_get(cursor, key, data, MDB_LAST);
  return rc ? rc : mdb_cursor_get(cursor, key, data, MDB_PREV);
}

static int channel_last_slice(last_s *l) {
  slice_s *c = &l->slice;
  chan_s record;
  bool exists;
  uint64_t mark;
  int rc = channel_mark(c, l->channel, &record, &exists, &mark);
  MDB_cursor *cursor;
  MDB_val data;
  wkey_s k = message_key(l->channel, l->position);
  MDB_val key = key_val(&k);
  if (!rc)
    rc = slice_cursor(c, TABLE_MESSAGES, &cursor);
  if (!rc)
    rc = cursor_before(cursor, &key, &data);
  while (!rc && !l->is_over && is_of_channel(key, l->channel) &&
         message_id(key, l->channel) > mark) {
    head_s h = {0};
    uint64_t id = message_id(key, l->channel);
    bool is_piece = key.mv_size != l->channel.len + 9;
    rc = is_piece ? 0 : head_of(data, &h);
    if (!rc && !is_piece && !has_ended(c, &h))
      last_take(l, id);
    if (!is_piece)
      l->position = id;
    if (!rc && !l->is_over && !is_piece && slice_is_over(c))
      return 0;
    if (!rc && !l->is_over)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_PREV);
  }
  l->is_over = true;
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int id_last(last_s *l, uint64_t id, MDB_val name) {
  read_s r = {.slice = l->slice};
  MDB_val data;
  bool is_live;
  head_s h;
  stored_s m;
  int rc = live_get(&r, view_val(name), id, &data, &is_live);
  if (!rc)
    rc = head_of(data, &h);
  if (rc || !is_live || has_ended(&l->slice, &h))
    return rc;
  rc = message_open(&l->slice, view_val(name), id, data, &m);
  if (!rc && (!l->is_wanted || l->is_wanted(l->arg, &m)))
    last_take(l, id);
  return rc;
}

static int all_last_slice(last_s *l) {
  MDB_cursor *cursor;
  MDB_val data;
  wkey_s k;
  k.len = 0;
  key_u64(&k, l->position);
  MDB_val key = key_val(&k);
  int rc = slice_cursor(&l->slice, TABLE_IDS, &cursor);
  if (!rc)
    rc = cursor_before(cursor, &key, &data);
  while (!rc && !l->is_over) {
    l->position = view_u64(key.mv_data);
    rc = id_last(l, l->position, data);
    if (!rc && !l->is_over && slice_is_over(&l->slice))
      return 0;
    if (!rc && !l->is_over)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_PREV);
  }
  l->is_over = true;
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int last_loop(last_s *l, store_s *s, int (*slice)(last_s *l)) {
  int rc = read_enter(&l->slice, s);
  if (rc)
    return answer(rc);
  while (!rc && !l->is_over && l->left) {
    rc = slice_begin(&l->slice);
    if (!rc)
      rc = slice(l);
    slice_end(&l->slice);
  }
  return read_leave(&l->slice, rc);
}

int store_last(store_s *s, view_s channel, size_t n, uint64_t until,
               uint64_t *since) {
  last_s l = {.channel = channel, .position = until + 1, .left = n};
  l.since = until;
  int rc = last_loop(&l, s, channel_last_slice);
  *since = l.since;
  return rc;
}

int store_last_all(store_s *s, size_t n, uint64_t until, store_each_f is_wanted,
                   void *arg, uint64_t *since) {
  last_s l = {.position = until + 1, .left = n, .since = until};
  l.is_wanted = is_wanted;
  l.arg = arg;
  int rc = last_loop(&l, s, all_last_slice);
  *since = l.since;
  return rc;
}

/* --- About channels --- */

static int first_id(slice_s *c, view_s name, uint64_t mark, uint64_t *out) {
  MDB_cursor *cursor;
  MDB_val data;
  wkey_s k = message_key(name, mark + 1);
  MDB_val key = key_val(&k);
  *out = 0;
  int rc = slice_cursor(c, TABLE_MESSAGES, &cursor);
  if (!rc)
    rc = mdb_cursor_get(cursor, &key, &data, MDB_SET_RANGE);
  while (!rc && is_of_channel(key, name)) {
    head_s h = {0};
    bool is_piece = key.mv_size != name.len + 9;
    rc = is_piece ? 0 : head_of(data, &h);
    if (!rc && !is_piece && !has_ended(c, &h)) {
      *out = message_id(key, name);
      return 0;
    }
    if (!rc)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT);
  }
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int info_of(slice_s *c, view_s name, const chan_s *record,
                   store_info_s *out) {
  *out = (store_info_s){.channel = name, .exists = record != NULL};
  int rc = mark_of(c, name, record, &out->trim);
  if (rc || !record)
    return rc;
  out->count = record->count;
  out->bytes = record->bytes;
  out->last = record->last;
  return record->count ? first_id(c, name, out->trim, &out->first) : 0;
}

int store_channel(store_s *s, view_s channel, store_info_s *out) {
  slice_s c;
  chan_s record;
  int rc = read_enter(&c, s);
  if (rc)
    return answer(rc);
  rc = slice_begin(&c);
  if (!rc)
    rc = record_get(&c, channel, &record);
  if (!rc || rc == MDB_NOTFOUND)
    rc = info_of(&c, channel, rc ? NULL : &record, out);
  return read_leave(&c, rc);
}

int store_gap(store_s *s, view_s channel, uint64_t since, uint64_t until,
              uint64_t *from, uint64_t *to) {
  store_info_s info;
  if (store_channel(s, channel, &info) < 0)
    return -1;
  *to = info.trim < until ? info.trim : until;
  *from = since + 1;
  return since < *to;
}

typedef struct {
  slice_s slice;
  view_s prefix;
  unsigned char after[STORE_NAME_MAX + 1];
  size_t after_len, left;
  bool (*each)(void *arg, const store_info_s *i);
  void *arg;
  bool is_over, has_more;
} list_s;

static int list_give(list_s *l, MDB_val key, MDB_val data) {
  chan_s record;
  store_info_s info;
  view_s name = view_val(key);
  if (data.mv_size != sizeof record || name.len > STORE_NAME_MAX)
    return MDB_CORRUPTED;
  if (l->left == 0) {
    l->is_over = l->has_more = true;
    return 0;
  }
  memcpy(&record, data.mv_data, sizeof record);
  int rc = info_of(&l->slice, name, &record, &info);
  if (rc)
    return rc;
  l->left--;
  memcpy(l->after, name.data, name.len);
  l->after[name.len] = 0; /* the next key that there could be */
  l->after_len = name.len + 1;
  if (!l->each(l->arg, &info))
    l->is_over = l->has_more = true;
  return 0;
}

static int list_slice(list_s *l) {
  MDB_cursor *cursor;
  MDB_val data, key = val_of(view_of(l->after, l->after_len));
  int rc = slice_cursor(&l->slice, TABLE_CHANNELS, &cursor);
  if (!rc)
    rc = mdb_cursor_get(cursor, &key, &data,
                        l->after_len ? MDB_SET_RANGE : MDB_FIRST);
  while (!rc && !l->is_over && view_starts(view_val(key), l->prefix)) {
    rc = list_give(l, key, data);
    if (!rc && !l->is_over && slice_is_over(&l->slice))
      return 0;
    if (!rc && !l->is_over)
      rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT);
  }
  l->is_over = true;
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static void list_from(list_s *l, view_s prefix, view_s after) {
  size_t n = prefix.len < after.len ? prefix.len : after.len;
  int order = n ? memcmp(after.data, prefix.data, n) : 0;
  bool is_behind = order > 0 || (order == 0 && after.len >= prefix.len);
  view_s from = after.len && is_behind ? after : prefix;
  l->after_len = from.len < STORE_NAME_MAX ? from.len : STORE_NAME_MAX;
  if (l->after_len)
    memcpy(l->after, from.data, l->after_len);
  if (after.len && is_behind)
    l->after[l->after_len++] = 0;
}

int store_list(store_s *s, view_s prefix, view_s after, size_t limit,
               bool (*each)(void *arg, const store_info_s *i), void *arg) {
  list_s l = {.prefix = prefix, .left = limit, .each = each, .arg = arg};
  list_from(&l, prefix, after);
  int rc = read_enter(&l.slice, s);
  if (rc)
    return answer(rc);
  while (!rc && !l.is_over) {
    rc = slice_begin(&l.slice);
    if (!rc)
      rc = list_slice(&l);
    slice_end(&l.slice);
  }
  return read_leave(&l.slice, rc) < 0 ? -1 : l.has_more;
}

/* --- After a lap --- */

static int verdict_by_key(slice_s *c, view_s channel, uint64_t id, view_s key,
                          view_s body, ring_verdict_s *out) {
  wkey_s k;
  k.len = 0;
  key_view(&k, channel);
  key_byte(&k, 0);
  key_view(&k, key);
  MDB_val data;
  known_s known;
  int rc = get(c, TABLE_KEYS, view_of(k.bytes, k.len), &data);
  if (rc || data.mv_size != sizeof known)
    return rc == MDB_NOTFOUND ? 0 : rc ? rc : MDB_CORRUPTED;
  memcpy(&known, data.mv_data, sizeof known);
  bool is_same = known.digest == siphash_24(c->s->shared->key, body);
  if (known.id == id)
    out->verdict = RING_KEPT;
  else if (known.id < id && known.due > id) {
    out->verdict = is_same ? RING_DUPLICATE : RING_CONFLICT;
    out->other = known.id;
  }
  return 0;
}

int store_verdict(store_s *s, view_s channel, uint64_t id, view_s key,
                  view_s body, ring_verdict_s *out) {
  slice_s c;
  *out = (ring_verdict_s){.verdict = RING_VOID};
  int rc = read_enter(&c, s);
  if (rc)
    return answer(rc);
  rc = slice_begin(&c);
  if (!rc && key.len)
    rc = verdict_by_key(&c, channel, id, key, body, out);
  if (!rc && !key.len) {
    wkey_s k = message_key(channel, id);
    MDB_val data;
    rc = get(&c, TABLE_MESSAGES, view_of(k.bytes, k.len), &data);
    out->verdict = rc ? RING_VOID : RING_KEPT;
    rc = rc == MDB_NOTFOUND ? 0 : rc;
  }
  return read_leave(&c, rc);
}
