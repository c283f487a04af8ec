/* store_trim.c - channels' records, what is removed and when.
 *
 * Invariants:
 * - a channel has exactly one entry in times if something of it can end by
 *   itself: under its `due` while it holds messages, which is never later than
 *   the end of its first message by age; under its mark while it is empty and
 *   its mark says something;
 * - messages leave a channel from the front, and its mark is then the id of the
 *   last one; only what ended by its own ttl leaves from anywhere, and
 * silently;
 * - a new record begins with the mark `forgotten`, so that no record hides what
 *   was told before it was there. */
#include "store_shared.h"
#include <errno.h>
#include <stdlib.h>

#define AGAIN_US 10000 /* a slow worker is in the way: look again */

/* --- Times --- */

wkey_s times_key(unsigned char region, uint64_t time, unsigned char kind) {
  wkey_s k;
  k.len = 0;
  key_byte(&k, region);
  key_u64(&k, time);
  key_byte(&k, kind);
  return k;
}

enum { TIMES_HEAD = 10 };

int times_put(store_s *s, wkey_s *key, view_s data) {
  MDB_val k = key_val(key), d = val_of(data);
  s->tx.has_new_times = true;
  return mdb_put(s->tx.txn, s->dbi[TABLE_TIMES], &k, &d, 0);
}

int times_del(store_s *s, wkey_s *key) {
  MDB_val k = key_val(key);
  s->tx.has_new_times = true;
  int rc = mdb_del(s->tx.txn, s->dbi[TABLE_TIMES], &k, NULL);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int times_first(store_s *s, unsigned char region, MDB_val *key, MDB_val *data) {
  MDB_cursor *c;
  int rc = tx_cursor(s, TABLE_TIMES, &c);
  if (rc)
    return rc;
  *key = val_of(view_of(&region, 1));
  rc = mdb_cursor_get(c, key, data, MDB_SET_RANGE);
  if (!rc && *(unsigned char *)key->mv_data != region)
    rc = MDB_NOTFOUND;
  return rc;
}

static uint64_t times_time(MDB_val key) {
  return view_u64((const char *)key.mv_data + 1);
}

static uint64_t plus(uint64_t a, uint64_t b) {
  return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

int times_due(store_s *s, uint64_t *due) {
  MDB_val key, data;
  *due = UINT64_MAX;
  int rc = times_first(s, AT_TIME, &key, &data);
  if (!rc)
    *due = times_time(key);
  if (rc && rc != MDB_NOTFOUND)
    return rc;
  rc = times_first(s, AT_EMPTY, &key, &data);
  uint64_t forget =
      rc ? UINT64_MAX : plus(times_time(key), s->shared->config.forget_us);
  if (forget < *due)
    *due = forget;
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* --- Channels --- */

const rule_s *store_rule(store_s *s, view_s name, uint64_t hash) {
  size_t at = (size_t)(hash % RULES_CACHED);
  if (!s->cache[at].rule || s->cache[at].hash != hash) {
    s->cache[at].rule = rules_find(s->shared->config.rules, name);
    s->cache[at].hash = hash;
  }
  return s->cache[at].rule;
}

static uint64_t lowest_mark(const state_s *d) {
  return d->forgotten > d->birth ? d->forgotten : d->birth;
}

int store_channel_get(store_s *s, view_s name, chan_s *out) {
  MDB_val data, key = val_of(name);
  int rc = mdb_get(s->tx.txn, s->dbi[TABLE_CHANNELS], &key, &data);
  if (!rc && data.mv_size != sizeof *out)
    rc = MDB_CORRUPTED;
  if (!rc)
    memcpy(out, data.mv_data, sizeof *out);
  return rc;
}

static int entry_move(store_s *s, view_s name, chan_s *c, uint64_t at,
                      uint64_t due) {
  int rc = 0;
  if (c->at == at && c->due == due)
    return 0;
  if (c->at != AT_NONE) {
    wkey_s k = times_key((unsigned char)c->at, c->due, 'c');
    key_view(&k, name);
    rc = times_del(s, &k);
  }
  c->at = at;
  c->due = at == AT_NONE ? 0 : due;
  if (rc || at == AT_NONE)
    return rc;
  wkey_s k = times_key((unsigned char)at, due, 'c');
  key_view(&k, name);
  return times_put(s, &k, (view_s){0});
}

int channel_forget(store_s *s, view_s name, chan_s *c) {
  state_s *d = &s->tx.state;
  MDB_val key = val_of(name);
  int rc = entry_move(s, name, c, AT_NONE, 0);
  if (!rc)
    rc = mdb_del(s->tx.txn, s->dbi[TABLE_CHANNELS], &key, NULL);
  if (c->trim > d->forgotten)
    d->forgotten = c->trim;
  d->channels--;
  return rc;
}

int channel_settle(store_s *s, view_s name, chan_s *c, uint64_t due) {
  bool is_empty = !c->count && !c->dead;
  if (is_empty && c->trim <= lowest_mark(&s->tx.state))
    return channel_forget(s, name, c);
  int rc = 0;
  if (is_empty)
    rc = entry_move(s, name, c, AT_EMPTY, c->trim);
  else if (due && (c->at != AT_TIME || due < c->due))
    rc = entry_move(s, name, c, AT_TIME, due);
  else if (c->at == AT_EMPTY)
    rc = entry_move(s, name, c, AT_NONE, 0);
  MDB_val key = val_of(name), data = val_of(view_of(c, sizeof *c));
  return rc ? rc : mdb_put(s->tx.txn, s->dbi[TABLE_CHANNELS], &key, &data, 0);
}

void mark_raise(store_s *s, chan_s *c, uint64_t id) {
  if (id > c->trim)
    c->trim = id;
  if (id > s->tx.state.trimmed)
    s->tx.state.trimmed = id;
}

/* --- Messages --- */

/* The cursor at the message, and its head. */
static int message_find(store_s *s, wkey_s *k, MDB_cursor_op op, MDB_val *key,
                        head_s *out) {
  MDB_cursor *c;
  MDB_val data;
  *key = key_val(k);
  int rc = tx_cursor(s, TABLE_MESSAGES, &c);
  if (!rc)
    rc = mdb_cursor_get(c, key, &data, op);
  if (!rc && data.mv_size < sizeof *out)
    rc = MDB_CORRUPTED;
  if (!rc)
    memcpy(out, data.mv_data, sizeof *out);
  return rc;
}

/* The message at which the cursor is, and its other pieces. */
static int pieces_del(store_s *s, view_s name, uint64_t id, const head_s *h) {
  uint32_t n = message_pieces(message_bytes(h));
  s->tx.freed += n;
  int rc = mdb_cursor_del(s->tx.cursors[TABLE_MESSAGES], 0);
  for (uint32_t i = 1; i < n && !rc; i++) {
    wkey_s k = message_key(name, id);
    key_piece(&k, i);
    MDB_val key = key_val(&k);
    rc = mdb_del(s->tx.txn, s->dbi[TABLE_MESSAGES], &key, NULL);
  }
  return rc;
}

static int id_del(store_s *s, uint64_t id) {
  wkey_s k;
  k.len = 0;
  key_u64(&k, id);
  MDB_val key = key_val(&k);
  return mdb_del(s->tx.txn, s->dbi[TABLE_IDS], &key, NULL);
}

static void message_uncount(store_s *s, chan_s *c, uint64_t id,
                            const head_s *h) {
  state_s *d = &s->tx.state;
  if (id <= c->trim) {
    c->dead--;
    d->dead--;
    return;
  }
  c->count--;
  c->bytes -= h->body;
  d->messages--;
  d->bytes -= h->body;
}

/* The message at which the cursor is. */
static int message_take(store_s *s, view_s name, chan_s *c, uint64_t id,
                        const head_s *h, bool is_trim) {
  int rc = pieces_del(s, name, id, h);
  if (!rc)
    rc = id_del(s, id);
  if (!rc && h->expires) {
    wkey_s k = times_key(AT_TIME, h->expires, 't');
    key_u64(&k, id);
    rc = times_del(s, &k);
  }
  if (rc)
    return rc;
  message_uncount(s, c, id, h);
  if (is_trim && (!h->expires || h->expires > s->tx.now))
    mark_raise(s, c, id);
  return 0;
}

int message_remove(store_s *s, view_s name, chan_s *c, uint64_t id,
                   bool is_trim) {
  head_s h;
  MDB_val key;
  wkey_s k = message_key(name, id);
  int rc = message_find(s, &k, MDB_SET_KEY, &key, &h);
  return rc ? rc : message_take(s, name, c, id, &h, is_trim);
}

/* The first message of a channel. */
static int message_first(store_s *s, view_s name, uint64_t *id, head_s *h) {
  wkey_s k = message_key(name, 0);
  MDB_val key;
  int rc = message_find(s, &k, MDB_SET_RANGE, &key, h);
  if (!rc && !is_of_channel(key, name))
    rc = MDB_NOTFOUND;
  if (!rc)
    *id = message_id(key, name);
  return rc == MDB_NOTFOUND ? MDB_CORRUPTED : rc;
}

/* --- Trimming --- */

static bool is_over(const chan_s *c, const rule_s *rule) {
  return c->count > rule->count || (rule->bytes && c->bytes > rule->bytes);
}

int channel_trim(store_s *s, view_s name, chan_s *c, const rule_s *rule,
                 bool by_age, size_t budget, uint64_t *due) {
  uint64_t now = s->tx.now;
  for (;; budget--) {
    bool must_shrink = c->dead || is_over(c, rule);
    if (!c->count && !c->dead)
      return 0;
    if (!must_shrink && !(by_age && rule->age_us))
      return 0;
    uint64_t id;
    head_s h;
    int rc = message_first(s, name, &id, &h);
    if (rc)
      return rc;
    bool has_ended = h.expires && h.expires <= now;
    if (!must_shrink && !has_ended && plus(id, rule->age_us) > now) {
      *due = plus(id, rule->age_us);
      return 0;
    }
    bool is_kept_back = id > c->trim && !has_ended && id > s->tx.low;
    if (budget == 0 || is_kept_back) {
      *due = is_kept_back ? now + AGAIN_US : now;
      return 0;
    }
    rc = message_take(s, name, c, id, &h, id > c->trim);
    if (rc)
      return rc;
  }
}

/* --- What has come due --- */

static int sweep_message(store_s *s, view_s name, uint64_t id) {
  chan_s c;
  int rc = store_channel_get(s, name, &c);
  if (!rc)
    rc = message_remove(s, name, &c, id, false);
  if (rc)
    return rc == MDB_NOTFOUND ? 0 : rc;
  return channel_settle(s, name, &c, 0);
}

static int sweep_key(store_s *s, view_s known) {
  MDB_val key = val_of(known);
  int rc = mdb_del(s->tx.txn, s->dbi[TABLE_KEYS], &key, NULL);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int sweep_channel(store_s *s, view_s name, size_t *budget) {
  chan_s c;
  uint64_t due = 0;
  int rc = store_channel_get(s, name, &c);
  if (rc)
    return rc == MDB_NOTFOUND ? 0 : rc;
  c.at = AT_NONE;
  uint64_t before = c.count + c.dead;
  const rule_s *rule = rules_find(s->shared->config.rules, name);
  rc = channel_trim(s, name, &c, rule, true, *budget, &due);
  uint64_t removed = before - (c.count + c.dead);
  *budget -= removed < *budget ? (size_t)removed : *budget;
  return rc ? rc : channel_settle(s, name, &c, due);
}

/* The entry, which lies in the map, is copied: its table is about to change. */
static int sweep_entry(store_s *s, MDB_val at, MDB_val found, size_t *budget) {
  unsigned char rest[512], held[512];
  size_t rest_len = at.mv_size - TIMES_HEAD, held_len = found.mv_size;
  if (rest_len > sizeof rest || held_len > sizeof held)
    return MDB_CORRUPTED;
  memcpy(rest, (char *)at.mv_data + TIMES_HEAD, rest_len);
  memcpy(held, found.mv_data, held_len);
  unsigned char kind = ((unsigned char *)at.mv_data)[TIMES_HEAD - 1];
  MDB_cursor *c;
  int rc = tx_cursor(s, TABLE_TIMES, &c);
  if (!rc)
    rc = mdb_cursor_del(c, 0);
  s->tx.has_new_times = true;
  if (rc)
    return rc;
  if (kind == 't' && rest_len == 8)
    return sweep_message(s, view_of(held, held_len), view_u64(rest));
  if (kind == 'k')
    return sweep_key(s, view_of(held, held_len));
  return sweep_channel(s, view_of(rest, rest_len), budget);
}

static int sweep_empty(store_s *s, MDB_val at) {
  unsigned char rest[STORE_NAME_MAX];
  size_t n = at.mv_size - TIMES_HEAD;
  if (n > sizeof rest)
    return MDB_CORRUPTED;
  memcpy(rest, (char *)at.mv_data + TIMES_HEAD, n);
  chan_s c;
  int rc = store_channel_get(s, view_of(rest, n), &c);
  return rc ? rc : channel_forget(s, view_of(rest, n), &c);
}

static int sweep_empties(store_s *s, size_t budget) {
  MDB_val key, data;
  int rc = 0;
  while (budget-- && (rc = times_first(s, AT_EMPTY, &key, &data)) == 0) {
    if (plus(times_time(key), s->shared->config.forget_us) > s->tx.now)
      return 0;
    rc = sweep_empty(s, key);
    if (rc)
      return rc;
  }
  return rc == MDB_NOTFOUND ? 0 : rc;
}

int store_sweep(store_s *s, size_t budget) {
  MDB_val key, data;
  int rc = 0;
  size_t empties = budget;
  while (budget && (rc = times_first(s, AT_TIME, &key, &data)) == 0) {
    if (times_time(key) > s->tx.now)
      break;
    budget--;
    rc = sweep_entry(s, key, data, &budget);
    if (rc)
      return rc;
  }
  if (rc && rc != MDB_NOTFOUND)
    return rc;
  return empties ? sweep_empties(s, empties) : 0;
}
