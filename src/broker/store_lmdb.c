/* store_lmdb.c - opening the store in a worker, and the transaction of a
 * commit.
 *
 * Invariants:
 * - LMDB never writes a page of a memory store that was not allocated: before a
 *   transaction the map of the writer ends where the allocation does, so LMDB
 *   itself says MDB_MAP_FULL there. Only a writer, under the store lock, makes
 *   its map that short; mapping sets the file's length, and any other length
 *   that is ever set is the longest;
 * - a transaction that is committed on the way says it covers what has its
 *   verdict in the ring, and no more;
 * - after any failure nothing more is put before the ring asked what the store
 *   covers. */
#include "store_shared.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
  ROOM_BASE = 64,    /* pages: the paths of all tables, the list of free ones */
  TOUCHED_BASE = 16, /* pages: what of it is usual */
  ROOM_MOST = 1 << 15, /* of a transaction */
  SWEEP_BRIEF = 64,
  COUNT_EVERY = 256, /* pages: a MiB */
  OLD_MS = 100,      /* a read that holds pages */
  RETRY_MS = 1000    /* then the system may have room again */
};

uint64_t store_mono_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int store_errno(int code) {
  return code == MDB_MAP_FULL       ? ENOSPC
         : code == MDB_READERS_FULL ? EAGAIN
         : code < 0                 ? EIO
                                    : code;
}

/* --- The environment --- */

static size_t map_most(const store_shared_s *shared) {
  size_t allocated = atomic_load(&shared->allocated);
  /* An old file that is longer must still have room to be trimmed in. */
  size_t least = allocated + (allocated > shared->config.size ? STORE_STEP : 0);
  return least > shared->config.size ? least : shared->config.size;
}

int env_open(const store_shared_s *shared, MDB_env **out) {
  unsigned flags = MDB_NOSUBDIR | MDB_NOTLS;
  if (!shared->is_durable)
    flags |= MDB_WRITEMAP | MDB_NOSYNC;
  MDB_env *env = NULL;
  int rc = mdb_env_create(&env);
  if (rc)
    return rc;
  rc = mdb_env_set_maxdbs(env, TABLES);
  if (!rc)
    rc = mdb_env_set_maxreaders(env, shared->config.slots * STORE_READERS + 8);
  if (!rc)
    rc = mdb_env_set_mapsize(env, map_most(shared));
  if (!rc)
    rc = mdb_env_open(env, shared->path, flags, 0600);
  if (rc)
    mdb_env_close(env);
  else
    *out = env;
  return rc;
}

int env_tables(MDB_txn *txn, MDB_dbi dbi[TABLES], unsigned flags) {
  static const char *const names[TABLES] = {NULL,       "messages", "ids",
                                            "channels", "keys",     "times"};
  int rc = 0;
  for (int i = 0; i < TABLES && !rc; i++)
    rc = mdb_dbi_open(txn, names[i], names[i] ? flags : 0, &dbi[i]);
  return rc;
}

/* Only between transactions of this process. */
int env_map(store_s *s, size_t bytes) {
  if (s->mapped == bytes)
    return 0;
  int rc = mdb_env_set_mapsize(s->env, bytes);
  s->mapped = rc ? 0 : bytes;
  return rc;
}

int state_get(MDB_txn *txn, MDB_dbi dbi, state_s *out) {
  MDB_val data, key = val_of(VIEW_LIT("state"));
  int rc = mdb_get(txn, dbi, &key, &data);
  if (!rc && data.mv_size != sizeof *out)
    rc = MDB_CORRUPTED;
  if (!rc)
    memcpy(out, data.mv_data, sizeof *out);
  return rc;
}

int state_put(MDB_txn *txn, MDB_dbi dbi, const state_s *state) {
  MDB_val key = val_of(VIEW_LIT("state"));
  MDB_val data = val_of(view_of(state, sizeof *state));
  return mdb_put(txn, dbi, &key, &data, 0);
}

/* --- The file --- */

static int file_allocate(int fd, uint64_t at, uint64_t bytes) {
  int rc;
  do
    rc = posix_fallocate(fd, (off_t)at, (off_t)bytes);
  while (rc == EINTR);
  return rc;
}

/* One step more, or the largest part of one that there is room for. */
static int file_step(store_shared_s *shared) {
  uint64_t at = atomic_load(&shared->allocated), most = shared->config.size;
  int rc = at < most ? 0 : ENOSPC;
  for (uint64_t step = STORE_STEP; !rc; step /= 4) {
    uint64_t bytes = most - at < step ? most - at : step;
    rc = file_allocate(shared->fd, at, bytes);
    if (!rc) {
      atomic_store(&shared->allocated, at + bytes);
      return 0;
    }
    if ((rc == ENOSPC || rc == EFBIG || rc == EDQUOT) && step > 1 << 20)
      rc = 0;
  }
  return rc;
}

static bool file_can_grow(const store_shared_s *shared) {
  uint64_t until_ms = atomic_load(&shared->full_until_ms);
  return atomic_load(&shared->allocated) < shared->config.size &&
         (!until_ms || store_mono_ms() >= until_ms);
}

int file_grow(store_shared_s *shared, size_t bytes) {
  uint64_t before = atomic_load(&shared->allocated);
  if (!file_can_grow(shared))
    return ENOSPC;
  int rc = 0;
  while (!rc && atomic_load(&shared->allocated) - before < bytes)
    rc = file_step(shared);
  if (rc && before < shared->config.size)
    atomic_store(&shared->full_until_ms, store_mono_ms() + RETRY_MS);
  return atomic_load(&shared->allocated) > before ? 0 : rc ? rc : ENOSPC;
}

/* Pages that there are, or may be. */
size_t store_limit_pages(const store_shared_s *shared) {
  uint64_t bytes = shared->config.size;
  uint64_t until_ms = atomic_load(&shared->full_until_ms);
  if (until_ms && store_mono_ms() < until_ms &&
      atomic_load(&shared->allocated) < bytes)
    bytes = atomic_load(&shared->allocated);
  return (size_t)(bytes / shared->page);
}

/* --- The transaction --- */

int tx_cursor(store_s *s, table_e table, MDB_cursor **out) {
  int rc = 0;
  if (!s->tx.cursors[table])
    rc = mdb_cursor_open(s->tx.txn, s->dbi[table], &s->tx.cursors[table]);
  *out = s->tx.cursors[table];
  return rc;
}

void tx_abort(store_s *s) {
  if (s->tx.txn)
    mdb_txn_abort(s->tx.txn); /* and its cursors */
  s->tx.txn = NULL;
  memset(s->tx.cursors, 0, sizeof s->tx.cursors);
}

/* Pages that hold something. */
size_t tx_used(store_s *s) {
  size_t pages = 2;
  for (int i = -1; i < TABLES; i++) {
    MDB_stat st;
    /* 0 is LMDB's own table of free pages */
    if (mdb_stat(s->tx.txn, i < 0 ? 0 : s->dbi[i], &st) == 0)
      pages += st.ms_branch_pages + st.ms_leaf_pages + st.ms_overflow_pages;
  }
  return pages;
}

/* When the oldest read that is going on began; 0: there is none. */
static uint64_t oldest_read(const store_shared_s *shared) {
  uint64_t oldest = 0;
  for (size_t i = 0; i < (size_t)shared->config.slots * STORE_READERS; i++) {
    uint64_t since = atomic_load(&shared->readings[i].since_ms);
    if (since && (!oldest || since < oldest))
      oldest = since;
  }
  return oldest;
}

static void touched_note(store_s *s) {
  store_shared_s *h = s->shared;
  uint64_t ms = store_mono_ms();
  if (h->touched_at[ms % TOUCHED_MS].ms != ms) {
    h->touched_at[ms % TOUCHED_MS].ms = ms;
    h->touched_at[ms % TOUCHED_MS].pages = h->touched;
  }
  h->touched += s->tx.spent - ROOM_BASE + TOUCHED_BASE + s->tx.freed;
}

/* Pages that were given up since `ms`, at most; UINT64_MAX: it is too long ago.
 */
static uint64_t touched_since(const store_shared_s *h, uint64_t ms) {
  for (uint64_t i = 1; i < TOUCHED_MS && i < ms; i++) {
    uint64_t at = (ms - i) % TOUCHED_MS;
    if (h->touched_at[at].ms == ms - i)
      return h->touched - h->touched_at[at].pages;
  }
  return UINT64_MAX;
}

/* About as many, without counting each time. */
static size_t used_about(store_s *s) {
  store_shared_s *h = s->shared;
  uint64_t grown = atomic_load(&h->grown) / (h->page / 2);
  if (grown >= COUNT_EVERY || atomic_load(&h->used_pages) == 0) {
    atomic_store(&h->used_pages, tx_used(s));
    atomic_store(&h->grown, 0);
    grown = 0;
  }
  return (size_t)(atomic_load(&h->used_pages) + grown);
}

/* Pages that were free before any read began that is going on. */
static size_t unused_free(store_s *s, size_t unused) {
  uint64_t oldest = oldest_read(s->shared);
  s->tx.has_readers = oldest != 0;
  uint64_t held = oldest ? touched_since(s->shared, oldest) : 0;
  return held < unused ? (unused - (size_t)held) / 4 * 3 : 0;
}

/* While the file can grow only its end counts, so that a reader who holds free
 * pages costs nobody a commit. */
static void tx_measure(store_s *s) {
  const store_shared_s *shared = s->shared;
  MDB_envinfo info;
  mdb_env_info(s->env, &info);
  size_t end = (size_t)(atomic_load(&shared->allocated) / shared->page);
  size_t next = info.me_last_pgno + 1, used = used_about(s);
  s->tx.used = used;
  size_t tail = end > next + 1 ? end - next - 1 : 0;
  size_t unused = next > used ? next - used : 0;
  s->tx.room = tail;
  if (!file_can_grow(shared))
    s->tx.room += unused_free(s, unused);
  s->tx.spent = ROOM_BASE;
}

/* What dead processes were reading holds pages until it is cleared. */
static void readers_clear(store_s *s) {
  uint32_t deaths = atomic_load(&s->shared->deaths);
  if (deaths == s->deaths_seen)
    return;
  int count;
  if (mdb_reader_check(s->env, &count) == 0)
    s->deaths_seen = deaths;
}

int tx_begin(store_s *s) {
  tx_s *t = &s->tx;
  int rc = 0;
  readers_clear(s);
  if (!s->shared->is_durable)
    rc = env_map(s, atomic_load(&s->shared->allocated));
  if (!rc)
    rc = mdb_txn_begin(s->env, NULL, 0, &t->txn);
  if (rc) {
    t->txn = NULL;
    return rc;
  }
  rc = state_get(t->txn, s->dbi[TABLE_MAIN], &t->state);
  if (rc) {
    tx_abort(s);
    return rc;
  }
  t->puts = 0;
  t->grown = t->freed = 0;
  t->has_readers = false;
  t->now = s->setup.clock(s->setup.arg);
  t->low = s->setup.low_id(s->setup.arg);
  tx_measure(s);
  return 0;
}

static void figures_update(store_s *s) {
  store_shared_s *h = s->shared;
  const state_s *d = &s->tx.state;
  atomic_fetch_add(&h->grown, s->tx.grown);
  atomic_store(&h->messages, d->messages);
  atomic_store(&h->bytes, d->bytes);
  atomic_store(&h->channels, d->channels);
  atomic_store(&h->forgotten, d->forgotten);
  atomic_store(&h->committed, d->committed);
  atomic_store(&h->ceiling, d->ceiling);
}

static void lease_extend(store_s *s) {
  state_s *d = &s->tx.state;
  uint64_t lease = s->shared->config.lease_us;
  uint64_t from = d->committed > s->tx.now ? d->committed : s->tx.now;
  if (d->ceiling < from + lease / 2)
    d->ceiling = from + lease;
}

static int tx_commit(store_s *s, uint64_t last_id) {
  tx_s *t = &s->tx;
  uint64_t due = atomic_load(&s->shared->due);
  int rc = t->has_new_times ? times_due(s, &due) : 0;
  if (last_id > t->state.committed)
    t->state.committed = last_id;
  lease_extend(s);
  if (!rc)
    rc = state_put(t->txn, s->dbi[TABLE_MAIN], &t->state);
  if (rc) {
    tx_abort(s);
    return rc;
  }
  touched_note(s);
  rc = mdb_txn_commit(t->txn);
  t->txn = NULL;
  memset(t->cursors, 0, sizeof t->cursors);
  if (rc)
    return rc;
  t->has_new_times = false;
  atomic_store(&s->shared->due, due);
  figures_update(s);
  return 0;
}

/* Begin again with more of the file, if the room is less than `pages`. */
static int tx_grow(store_s *s, size_t pages) {
  tx_s *t = &s->tx;
  if (t->spent + pages <= t->room)
    return 0;
  size_t more = (t->spent + pages - t->room) * s->shared->page;
  int rc = file_grow(s->shared, more);
  tx_abort(s);
  int begun = tx_begin(s);
  return begun ? begun : rc && t->spent + pages > t->room ? STORE_HELD : 0;
}

/* Pages that a transaction frees are of use two transactions later. */
static int tx_settle(store_s *s) {
  int rc = 0;
  for (int i = 0; i < 2 && !rc; i++) {
    rc = tx_commit(s, s->tx.last_id);
    if (!rc)
      rc = tx_begin(s);
  }
  return rc;
}

int tx_room(store_s *s, size_t pages) {
  tx_s *t = &s->tx;
  if (t->spent + pages > t->room || t->spent >= ROOM_MOST) {
    int rc = tx_commit(s, t->last_id);
    if (!rc)
      rc = tx_begin(s);
    if (!rc)
      rc = tx_grow(s, pages);
    if (rc == STORE_HELD && !t->has_readers)
      rc = tx_settle(s); /* then all that is free is of use: LMDB will tell */
    if (rc)
      return rc;
  }
  t->spent += pages;
  return 0;
}

int tx_again(store_s *s) {
  tx_abort(s);
  bool has_grown = file_grow(s->shared, STORE_STEP) == 0;
  int rc = tx_begin(s);
  if (rc || has_grown)
    return rc;
  /* What a reader holds is not freed by dropping more. */
  if (!s->shared->config.may_evict || oldest_read(s->shared))
    return MDB_MAP_FULL;
  for (int i = 0; i < SWEEP_BRIEF && !rc; i++)
    rc = evict_one(s);
  return rc && rc != MDB_NOTFOUND ? MDB_MAP_FULL : tx_settle(s);
}

/* --- The store as a commit sees it --- */

static store_s *store_of(ring_store_s *super) {
  return (store_s *)super;
}

static int fail(int code) {
  errno = store_errno(code);
  return -1;
}

static int store_begin(ring_store_s *super, uint64_t *committed) {
  store_s *s = store_of(super);
  s->tx.is_broken = false;
  int rc = tx_begin(s);
  if (rc)
    return fail(rc);
  s->tx.last_id = s->tx.state.committed;
  *committed = s->tx.state.committed;
  if (s->tx.now >= atomic_load(&s->shared->due))
    rc = store_sweep(s, SWEEP_BRIEF);
  if (rc == MDB_MAP_FULL) { /* without what it removed, then */
    tx_abort(s);
    rc = tx_begin(s);
  }
  if (rc) {
    tx_abort(s);
    return fail(rc);
  }
  return 0;
}

/* What was put must not be lost for want of room to remove something. */
static size_t sweep_budget(const tx_s *t) {
  size_t room = t->room > t->spent ? (t->room - t->spent) / 8 : 0;
  return room < 2 * t->puts ? room : 2 * t->puts;
}

static int store_commit(ring_store_s *super, uint64_t last_id) {
  store_s *s = store_of(super);
  if (s->tx.is_broken) {
    tx_abort(s);
    errno = ENOSPC;
    return -1;
  }
  int rc = 0;
  if (s->tx.puts && s->tx.now >= atomic_load(&s->shared->due))
    rc = store_sweep(s, sweep_budget(&s->tx));
  if (!rc)
    rc = tx_commit(s, last_id);
  if (!rc)
    return 0;
  tx_abort(s);
  /* Where all was refused there is nothing that must be written. */
  return rc == MDB_MAP_FULL && !s->tx.puts ? 0 : fail(rc);
}

static int env_renew(store_s *s);

static int store_reopen(ring_store_s *super, uint64_t *committed) {
  store_s *s = store_of(super);
  tx_abort(s);
  int rc = store_committed(s, committed);
  if (rc == MDB_PANIC || !s->env) {
    rc = env_renew(s);
    if (!rc)
      rc = store_committed(s, committed);
  }
  return rc ? fail(rc) : 0;
}

static const ring_store_ops_s store_ops = {store_begin, store_put, store_commit,
                                           store_reopen};

/* --- Opening --- */

static void lanes_close(store_s *s) {
  for (int i = 0; i < STORE_READERS; i++) {
    lane_s *l = &s->lanes[i];
    for (int t = 0; t < TABLES; t++)
      if (l->cursors[t])
        mdb_cursor_close(l->cursors[t]);
    if (l->txn)
      mdb_txn_abort(l->txn);
    free(l->scratch);
    *l = (lane_s){0};
  }
}

static int tables_open(store_s *s) {
  MDB_txn *txn;
  int rc = mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn);
  if (rc)
    return rc;
  rc = env_tables(txn, s->dbi, 0);
  if (rc)
    mdb_txn_abort(txn);
  else
    rc = mdb_txn_commit(txn); /* the handles stay */
  return rc;
}

static int env_begin(store_s *s) {
  int rc = env_open(s->shared, &s->env);
  if (rc) {
    s->env = NULL;
    return rc;
  }
  s->mapped = map_most(s->shared);
  int count;
  rc = mdb_reader_check(s->env, &count);
  return rc ? rc : tables_open(s);
}

/* LMDB does not go on after some failures. */
static int env_renew(store_s *s) {
  pthread_rwlock_wrlock(&s->env_lock);
  lanes_close(s);
  if (s->env)
    mdb_env_close(s->env);
  s->env = NULL;
  int rc = env_begin(s);
  pthread_rwlock_unlock(&s->env_lock);
  return rc;
}

store_s *store_open(store_shared_s *shared, const store_setup_s *setup) {
  store_s *s = calloc(1, sizeof *s);
  if (!s)
    return NULL;
  s->super.ops = &store_ops;
  s->shared = shared;
  s->setup = *setup;
  s->tx.has_new_times = true;
  pthread_rwlock_init(&s->env_lock, NULL);
  int rc = env_begin(s);
  if (!rc)
    return s;
  store_close(s);
  errno = store_errno(rc);
  return NULL;
}

void store_close(store_s *s) {
  if (!s)
    return;
  tx_abort(s);
  lanes_close(s);
  if (s->env)
    mdb_env_close(s->env);
  pthread_rwlock_destroy(&s->env_lock);
  free(s);
}

ring_store_s *store_ring(store_s *s) {
  return &s->super;
}

/* --- When to come --- */

static bool needs_lease(const store_s *s) {
  const store_shared_s *h = s->shared;
  return h->is_durable &&
         s->setup.clock(s->setup.arg) + h->config.lease_us / 4 >
             atomic_load(&h->ceiling);
}

bool store_concerns(const store_s *s, const rule_s *rule, bool has_key) {
  return rule->count || has_key || needs_lease(s);
}

bool store_is_due(const store_s *s) {
  return s->setup.clock(s->setup.arg) >= atomic_load(&s->shared->due);
}
