/* store_put.c - deciding groups and putting what is kept.
 *
 * Invariant: a group is decided whole. Its keys are decided first, and taken
 * back if one of them conflicts; the room is made sure of before; and where the
 * store fails in the middle, nothing of the transaction is committed. */
#include "store_shared.h"
#include <errno.h>
#include <stdlib.h>

enum {
  PAGES_MESSAGE = 6, /* of tables, that a message touches, about */
  PAGES_DROP = 256,
  DROP_NOW = 256, /* messages of a channel; more of them go later */
  TRIM_NOW = 4096,
  TICK_BUDGET = 500,
  OVERHEAD = 192,    /* bytes of a message beside its body, about */
  EVICT_MOST = 4096, /* messages for one group */
  FULL_PERCENT = 95
};

/* --- Keys --- */

static wkey_s known_key(const ring_record_s *r) {
  wkey_s k;
  k.len = 0;
  key_view(&k, r->channel);
  key_byte(&k, 0);
  key_view(&k, r->key);
  return k;
}

static int known_get(store_s *s, wkey_s *k, known_s *out) {
  MDB_val key = key_val(k), data;
  int rc = mdb_get(s->tx.txn, s->dbi[TABLE_KEYS], &key, &data);
  if (!rc && data.mv_size != sizeof *out)
    rc = MDB_CORRUPTED;
  if (!rc)
    memcpy(out, data.mv_data, sizeof *out);
  return rc;
}

static int known_times_del(store_s *s, const known_s *known) {
  wkey_s t = times_key(AT_TIME, known->due, 'k');
  key_u64(&t, known->id);
  return times_del(s, &t);
}

static int known_put(store_s *s, wkey_s *k, const known_s *known) {
  MDB_val key = key_val(k), data = val_of(view_of(known, sizeof *known));
  int rc = mdb_put(s->tx.txn, s->dbi[TABLE_KEYS], &key, &data, 0);
  wkey_s t = times_key(AT_TIME, known->due, 'k');
  key_u64(&t, known->id);
  return rc ? rc : times_put(s, &t, view_of(k->bytes, k->len));
}

/* Decide by the key, and remember it if it is new. */
static int key_decide(store_s *s, const ring_record_s *r, ring_verdict_s *v) {
  wkey_s k = known_key(r);
  known_s known, fresh = {.id = r->id};
  fresh.digest = siphash_24(s->shared->key, r->body);
  fresh.due = r->id + s->shared->config.key_us;
  int rc = known_get(s, &k, &known);
  if (!rc && known.due > s->tx.now) {
    v->verdict = known.digest == fresh.digest ? RING_DUPLICATE : RING_CONFLICT;
    v->other = known.id;
    return 0;
  }
  if (!rc)
    rc = known_times_del(s, &known);
  return rc && rc != MDB_NOTFOUND ? rc : known_put(s, &k, &fresh);
}

static int key_undo(store_s *s, const ring_record_s *r) {
  wkey_s k = known_key(r);
  MDB_val key = key_val(&k);
  known_s known;
  int rc = known_get(s, &k, &known);
  if (!rc)
    rc = known_times_del(s, &known);
  return rc ? rc : mdb_del(s->tx.txn, s->dbi[TABLE_KEYS], &key, NULL);
}

static bool has_key(const store_s *s, const ring_record_s *r) {
  return r->key.len && r->op == STORE_MESSAGE && s->shared->config.key_us;
}

static int keys_undo(store_s *s, const ring_record_s *g, size_t n,
                     ring_verdict_s *v) {
  int rc = 0;
  for (size_t i = 0; i < n && !rc; i++) {
    if (has_key(s, &g[i]) && v[i].verdict == RING_KEPT)
      rc = key_undo(s, &g[i]);
    if (v[i].verdict != RING_CONFLICT)
      v[i] = (ring_verdict_s){.verdict = RING_CONFLICT};
  }
  return rc;
}

static int keys_decide(store_s *s, const ring_record_s *g, size_t n,
                       ring_verdict_s *v, bool *has_conflict) {
  int rc = 0;
  *has_conflict = false;
  for (size_t i = 0; i < n && !rc; i++) {
    v[i] = (ring_verdict_s){.verdict = RING_KEPT};
    if (has_key(s, &g[i]))
      rc = key_decide(s, &g[i], &v[i]);
    *has_conflict |= v[i].verdict == RING_CONFLICT;
  }
  return !rc && *has_conflict ? keys_undo(s, g, n, v) : rc;
}

/* --- Messages --- */

/* The bytes from `at` to `end` of a message that lies in four parts. */
static void gather(char *to, const view_s parts[4], size_t at, size_t end) {
  size_t from = 0;
  for (int i = 0; i < 4; i++) {
    size_t next = from + parts[i].len;
    if (at < next && at < end && parts[i].len) {
      size_t n = (next < end ? next : end) - at;
      memcpy(to, parts[i].data + (at - from), n);
      to += n;
      at += n;
    }
    from = next;
  }
}

static int pieces_put(store_s *s, const ring_record_s *r, const head_s *h) {
  const view_s parts[4] = {view_of(h, sizeof *h), r->type, r->event, r->body};
  size_t bytes = message_bytes(h);
  int rc = 0;
  for (size_t at = 0; at < bytes && !rc; at += STORE_PIECE) {
    size_t n = bytes - at < STORE_PIECE ? bytes - at : STORE_PIECE;
    wkey_s k = message_key(r->channel, r->id);
    if (at)
      key_piece(&k, (uint32_t)(at / STORE_PIECE));
    MDB_val key = key_val(&k), data = {n, NULL};
    rc = mdb_put(s->tx.txn, s->dbi[TABLE_MESSAGES], &key, &data, MDB_RESERVE);
    if (!rc)
      gather((char *)data.mv_data, parts, at, at + n);
  }
  return rc;
}

static int id_put(store_s *s, const ring_record_s *r) {
  wkey_s k;
  k.len = 0;
  key_u64(&k, r->id);
  MDB_val key = key_val(&k), data = val_of(r->channel);
  return mdb_put(s->tx.txn, s->dbi[TABLE_IDS], &key, &data, MDB_APPEND);
}

static int ttl_put(store_s *s, const ring_record_s *r, uint64_t expires) {
  wkey_s k = times_key(AT_TIME, expires, 't');
  key_u64(&k, r->id);
  return times_put(s, &k, r->channel);
}

static int message_put(store_s *s, const ring_record_s *r) {
  head_s h = {.body = (uint32_t)r->body.len,
              .type = (uint16_t)r->type.len,
              .event = (uint16_t)r->event.len,
              .kind = r->kind};
  if (r->ttl)
    h.expires = r->id + (uint64_t)r->ttl * 1000000;
  int rc = pieces_put(s, r, &h);
  if (!rc)
    rc = id_put(s, r);
  if (!rc && h.expires)
    rc = ttl_put(s, r, h.expires);
  return rc;
}

static int channel_make(store_s *s, view_s name, chan_s *c) {
  int rc = store_channel_get(s, name, c);
  if (rc != MDB_NOTFOUND)
    return rc;
  *c = (chan_s){.trim = s->tx.state.forgotten};
  s->tx.state.channels++;
  return 0;
}

static int keep(store_s *s, const ring_record_s *r) {
  const rule_s *rule = store_rule(s, r->channel, r->hash);
  chan_s c;
  if (!rule->count)
    return 0;
  int rc = channel_make(s, r->channel, &c);
  if (!rc)
    rc = message_put(s, r);
  if (rc)
    return rc;
  s->tx.grown += r->body.len + OVERHEAD;
  c.count++;
  c.bytes += r->body.len;
  c.last = r->id;
  s->tx.state.messages++;
  s->tx.state.bytes += r->body.len;
  uint64_t due = 0;
  rc = channel_trim(s, r->channel, &c, rule, false, TRIM_NOW, &due);
  if (!due && rule->age_us)
    due = r->id + rule->age_us;
  return rc ? rc : channel_settle(s, r->channel, &c, due);
}

/* --- DELETE --- */

static int drop(store_s *s, const ring_record_s *r) {
  state_s *d = &s->tx.state;
  chan_s c;
  int rc = store_channel_get(s, r->channel, &c);
  if (rc || !c.count)
    return rc == MDB_NOTFOUND ? 0 : rc;
  mark_raise(s, &c, c.last);
  d->messages -= c.count;
  d->bytes -= c.bytes;
  d->dead += c.count;
  c.dead += c.count;
  c.count = c.bytes = 0;
  uint64_t due = 0;
  const rule_s *rule = store_rule(s, r->channel, r->hash);
  rc = channel_trim(s, r->channel, &c, rule, false, DROP_NOW, &due);
  return rc ? rc : channel_settle(s, r->channel, &c, due);
}

/* --- Room --- */

/* The oldest empty channel's mark, or UINT64_MAX. */
static int oldest_empty(store_s *s, uint64_t *mark, char *name, size_t *len) {
  MDB_val key, data;
  int rc = times_first(s, AT_EMPTY, &key, &data);
  *mark = UINT64_MAX;
  if (rc)
    return rc == MDB_NOTFOUND ? 0 : rc;
  *mark = view_u64((const char *)key.mv_data + 1);
  *len = key.mv_size - 10;
  if (*len > STORE_NAME_MAX)
    return MDB_CORRUPTED;
  memcpy(name, (const char *)key.mv_data + 10, *len);
  return 0;
}

/* The oldest message's id, or UINT64_MAX. */
static int oldest_message(store_s *s, uint64_t *id, char *name, size_t *len) {
  MDB_cursor *c;
  MDB_val key, data;
  *id = UINT64_MAX;
  int rc = tx_cursor(s, TABLE_IDS, &c);
  if (!rc)
    rc = mdb_cursor_get(c, &key, &data, MDB_FIRST);
  if (rc)
    return rc == MDB_NOTFOUND ? 0 : rc;
  if (data.mv_size > STORE_NAME_MAX || key.mv_size != 8)
    return MDB_CORRUPTED;
  *id = view_u64(key.mv_data);
  *len = data.mv_size;
  memcpy(name, data.mv_data, *len);
  return 0;
}

static int evict_message(store_s *s, view_s name, uint64_t id) {
  chan_s c;
  int rc = store_channel_get(s, name, &c);
  bool is_dead = !rc && id <= c.trim;
  if (!rc)
    rc = message_remove(s, name, &c, id, !is_dead);
  if (!rc && !is_dead)
    atomic_fetch_add(&s->shared->evicted, 1);
  return rc ? rc : channel_settle(s, name, &c, 0);
}

static int evict_empty(store_s *s, view_s name) {
  chan_s c;
  int rc = store_channel_get(s, name, &c);
  return rc ? rc : channel_forget(s, name, &c);
}

int evict_one(store_s *s) {
  char channel[STORE_NAME_MAX], empty[STORE_NAME_MAX];
  size_t channel_len = 0, empty_len = 0;
  uint64_t id, mark;
  int rc = oldest_message(s, &id, channel, &channel_len);
  if (!rc)
    rc = oldest_empty(s, &mark, empty, &empty_len);
  if (rc)
    return rc;
  uint64_t oldest = id < mark ? id : mark;
  if (oldest == UINT64_MAX || oldest > s->tx.low)
    return MDB_NOTFOUND; /* or a slow worker is to see it first */
  return mark <= id ? evict_empty(s, view_of(empty, empty_len))
                    : evict_message(s, view_of(channel, channel_len), id);
}

static size_t most_pages(const store_s *s) {
  return store_limit_pages(s->shared) / 100 * FULL_PERCENT;
}

static bool is_full(store_s *s, size_t pages) {
  size_t most = most_pages(s);
  if (s->tx.used + s->tx.spent + pages < most)
    return false; /* without counting */
  size_t used = tx_used(s);
  atomic_store(&s->shared->used_pages, used);
  atomic_store(&s->shared->grown, 0);
  s->tx.grown = 0;
  return used >= most || pages > most - used;
}

/* Stay below the limit, or STORE_FULL. */
static int make_room(store_s *s, size_t pages) {
  if (!is_full(s, pages))
    return 0;
  if (pages >= most_pages(s))
    return STORE_FULL; /* however many go for it */
  int rc = store_sweep(s, DROP_NOW);
  size_t most = s->shared->config.may_evict ? EVICT_MOST : 0;
  for (size_t i = 0; !rc && i < most && is_full(s, pages); i++) {
    rc = tx_room(s, PAGES_MESSAGE);
    if (!rc)
      rc = evict_one(s);
  }
  if (rc && rc != MDB_NOTFOUND)
    return rc;
  return is_full(s, pages) ? STORE_FULL : 0;
}

/* What a group takes: pages that stay, and pages that are touched. */
static void group_pages(const ring_record_s *g, size_t n, size_t *kept,
                        size_t *touched) {
  *kept = *touched = 0;
  for (size_t i = 0; i < n; i++) {
    size_t bytes =
        sizeof(head_s) + g[i].type.len + g[i].event.len + g[i].body.len;
    size_t pages = message_pieces(bytes);
    *kept += g[i].op == STORE_MESSAGE ? pages : 0;
    *touched += pages + PAGES_MESSAGE;
    if (g[i].op != STORE_MESSAGE)
      *touched += PAGES_DROP;
  }
}

/* --- A group --- */

static int group_put(store_s *s, const ring_record_s *g, size_t n,
                     ring_verdict_s *v) {
  bool has_conflict;
  int rc = keys_decide(s, g, n, v, &has_conflict);
  for (size_t i = 0; i < n && !rc && !has_conflict; i++) {
    if (v[i].verdict != RING_KEPT)
      continue;
    if (g[i].op == STORE_MESSAGE)
      rc = keep(s, &g[i]);
    else if (g[i].op == STORE_DROP)
      rc = drop(s, &g[i]);
    else if (g[i].op == STORE_TICK)
      rc = store_sweep(s, TICK_BUDGET);
  }
  return rc;
}

/* As often as it helps, as long as nothing else is at stake. */
static int group_try(store_s *s, const ring_record_s *g, size_t n,
                     ring_verdict_s *v) {
  size_t kept, touched;
  group_pages(g, n, &kept, &touched);
  int rc = kept ? make_room(s, kept) : 0;
  if (!rc)
    rc = tx_room(s, touched);
  if (rc)
    return rc;
  rc = group_put(s, g, n, v);
  for (int i = 0; rc == MDB_MAP_FULL && !s->tx.puts && i < 4; i++) {
    rc = tx_again(s);
    if (!rc)
      rc = group_put(s, g, n, v);
  }
  return rc;
}

static void decide_all(size_t n, ring_verdict_s *v, ring_verdict_e verdict) {
  for (size_t i = 0; i < n; i++)
    v[i] = (ring_verdict_s){.verdict = verdict};
}

/* A transaction that LMDB gave up is begun anew, if it was this group's alone
 * and nothing is lost by it. With eviction there is room again soon. */
static int group_refuse(store_s *s, const ring_record_s *g, size_t n,
                        ring_verdict_s *v, int rc) {
  if (rc == MDB_MAP_FULL && s->tx.puts)
    return rc;
  bool is_brief = rc != STORE_FULL && s->shared->config.may_evict;
  decide_all(n, v, is_brief ? RING_VOID : RING_REFUSED);
  atomic_fetch_add(&s->shared->refused, n);
  s->tx.last_id = g[n - 1].id;
  if (rc != MDB_MAP_FULL)
    return 0;
  tx_abort(s);
  return tx_begin(s);
}

void store_put(ring_store_s *super, const ring_record_s *g, size_t n,
               ring_verdict_s *v) {
  store_s *s = (store_s *)super;
  int rc = s->tx.is_broken ? EIO : group_try(s, g, n, v);
  if (rc == STORE_FULL || rc == STORE_HELD || rc == MDB_MAP_FULL) {
    rc = group_refuse(s, g, n, v, rc);
  } else if (!rc) {
    s->tx.puts++;
    s->tx.last_id = g[n - 1].id;
  }
  if (!rc)
    return;
  decide_all(n, v, RING_VOID);
  s->tx.is_broken = true;
}
