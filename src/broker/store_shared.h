/* store_shared.h - how the store lies in LMDB, as its source files see it.
 *
 *   (unnamed)  "crier" -> mark_s, "state" -> state_s; and LMDB's own
 *   messages   name 0 id [piece] -> head_s type event body, cut into pieces
 *   ids        id -> name
 *   channels   name -> chan_s
 *   keys       name 0 key -> known_s
 *   times      what is to be looked at, and when:
 *                1 time 't' id    -> name          a message with a ttl ends
 *                1 time 'k' id    -> name 0 key    a key is forgotten
 *                1 time 'c' name  ->               a channel is to be trimmed
 *                2 mark 'c' name  ->               an empty channel
 *
 * Numbers in keys are big-endian, so all is in order of time. A name holds no
 * NUL byte, so a channel's messages lie together. A piece fills one page: then
 * any free page will do, and what was freed can always be used again.
 *
 * Functions here return 0 or an LMDB code (an errno, or below 0). */
#ifndef BROKER_STORE_SHARED_H
#define BROKER_STORE_SHARED_H

#include "store_lmdb.h"
#include <facil/siphash.h>
#include <limits.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>

typedef enum {
  TABLE_MAIN,
  TABLE_MESSAGES,
  TABLE_IDS,
  TABLE_CHANNELS,
  TABLE_KEYS,
  TABLE_TIMES,
  TABLES
} table_e;

enum {
  STORE_FORMAT = 1,
  STORE_STEP = 16 << 20, /* the file grows by it */
  STORE_PIECE = 4080,    /* a page of 4096 without its header */
  STORE_NAME_MAX = 255,
  /* Codes of our own; the transaction is as good as before. */
  STORE_FULL = -1, /* refuse */
  STORE_HELD = -2, /* readers hold what was made free: try again later */
  TOUCHED_MS = 128
};

#define STORE_MAGIC "crier store\n\032\n"

typedef struct {
  char magic[16];
  uint32_t format;
  uint32_t order; /* of bytes: 0x01020304 */
  siphash_key_s key;
} mark_s;

typedef struct {
  uint64_t committed; /* everything up to it was decided */
  uint64_t ceiling;   /* no id above it was given */
  uint64_t birth;
  uint64_t forgotten; /* highest mark of a record that was dropped */
  uint64_t trimmed;   /* highest mark of all */
  uint64_t messages, bytes, channels;
  uint64_t dead; /* messages below their channel's mark, to be removed */
} state_s;

enum { AT_NONE, AT_TIME, AT_EMPTY };

/* A channel. Its messages with ids up to `trim` are dead: nobody reads them. */
typedef struct {
  uint64_t count, bytes; /* that are not dead */
  uint64_t dead;
  uint64_t last; /* id of the last one put */
  uint64_t trim;
  uint64_t due; /* where its one entry in times is */
  uint64_t at;  /* AT_ */
} chan_s;

typedef struct {
  uint64_t expires;
  uint32_t body;
  uint16_t type, event;
  uint8_t kind;
  uint8_t spare[7];
} head_s;
_Static_assert(sizeof(head_s) == 24, "no padding is stored");

typedef struct {
  uint64_t id, digest, due;
} known_s;

/* A read that is going on. */
typedef struct {
  _Alignas(64) _Atomic uint64_t since_ms; /* 0: none */
} reading_s;

/* What the master saw of it. */
typedef struct {
  uint64_t since_ms, seen_ms;
} seen_s;

struct store_shared_s {
  store_config_s config;
  bool is_durable;
  int fd; /* of the file: its flock, its allocation */
  size_t page, map_bytes;
  siphash_key_s key;
  uint64_t birth, floor;
  char path[PATH_MAX];
  seen_s *seen; /* slots x STORE_READERS, of the master */
  /* From here on by all: */
  _Atomic uint64_t allocated; /* under the store lock */
  _Atomic uint64_t full_until_ms;
  /* Under the store lock: pages that transactions took or gave up, in all, and
   * how many it were at a millisecond, for the last ones. */
  uint64_t touched;
  struct {
    uint64_t ms, pages;
  } touched_at[TOUCHED_MS];
  _Atomic uint64_t ceiling, due;
  _Atomic uint64_t used_pages; /* when they were counted */
  _Atomic uint64_t grown;      /* bytes put since then */
  _Atomic uint64_t messages, bytes, channels;
  _Atomic uint64_t forgotten, committed, evicted, refused;
  _Atomic uint32_t deaths;
  reading_s readings[]; /* slots x STORE_READERS */
};

/* The write transaction. */
typedef struct {
  MDB_txn *txn;
  MDB_cursor *cursors[TABLES];
  state_s state;
  uint64_t now, low;
  size_t used;  /* pages that held something at its begin, about */
  size_t grown; /* bytes put */
  size_t room;  /* pages that it may take, about */
  size_t spent; /* of them, at most, about */
  size_t freed; /* pages of messages that went */
  size_t puts;  /* groups */
  uint64_t last_id;
  bool has_readers;
  bool has_new_times; /* `due` is to be found again */
  bool is_broken;
} tx_s;

typedef struct {
  MDB_txn *txn;
  MDB_cursor *cursors[TABLES];
  char *scratch;
  size_t scratch_cap;
} lane_s;

enum { RULES_CACHED = 256 };

struct store_s {
  ring_store_s super;
  store_shared_s *shared;
  store_setup_s setup;
  MDB_env *env;
  MDB_dbi dbi[TABLES];
  size_t mapped;
  uint32_t deaths_seen;
  pthread_rwlock_t env_lock; /* readers against reopen */
  tx_s tx;
  lane_s lanes[STORE_READERS];
  struct {
    uint64_t hash;
    const rule_s *rule;
  } cache[RULES_CACHED];
};

/* --- Keys --- */

typedef struct {
  size_t len;
  unsigned char bytes[512];
} wkey_s;

static inline void key_byte(wkey_s *k, unsigned char c) {
  k->bytes[k->len++] = c;
}

static inline void key_u64(wkey_s *k, uint64_t v) {
  for (int shift = 56; shift >= 0; shift -= 8)
    key_byte(k, (unsigned char)(v >> shift));
}

static inline void key_view(wkey_s *k, view_s v) {
  if (v.len)
    memcpy(k->bytes + k->len, v.data, v.len);
  k->len += v.len;
}

static inline MDB_val key_val(wkey_s *k) {
  return (MDB_val){k->len, k->bytes};
}

static inline MDB_val val_of(view_s v) {
  return (MDB_val){v.len, (void *)(uintptr_t)v.data};
}

static inline view_s view_val(MDB_val v) {
  return view_of(v.mv_data, v.mv_size);
}

/* name 0 id */
static inline wkey_s message_key(view_s name, uint64_t id) {
  wkey_s k;
  k.len = 0;
  key_view(&k, name);
  key_byte(&k, 0);
  key_u64(&k, id);
  return k;
}

static inline void key_piece(wkey_s *k, uint32_t piece) {
  for (int shift = 24; shift >= 0; shift -= 8)
    key_byte(k, (unsigned char)(piece >> shift));
}

static inline bool is_of_channel(MDB_val key, view_s name) {
  const char *p = (const char *)key.mv_data;
  return key.mv_size >= name.len + 9 && p[name.len] == 0 &&
         memcmp(p, name.data, name.len) == 0;
}

static inline uint64_t message_id(MDB_val key, view_s name) {
  return view_u64((const char *)key.mv_data + name.len + 1);
}

static inline size_t message_bytes(const head_s *h) {
  return sizeof *h + h->type + h->event + h->body;
}

static inline uint32_t message_pieces(size_t bytes) {
  return (uint32_t)((bytes + STORE_PIECE - 1) / STORE_PIECE);
}

/* --- store_lmdb.c: the environment, the transaction --- */

int env_open(const store_shared_s *shared, MDB_env **out);
int env_tables(MDB_txn *txn, MDB_dbi dbi[TABLES], unsigned flags);
int env_map(store_s *s, size_t bytes);
/* More of the file, at least `bytes` of it if possible. 0 or ENOSPC and so on:
 * none. Under the store lock. */
int file_grow(store_shared_s *shared, size_t bytes);
int state_get(MDB_txn *txn, MDB_dbi dbi, state_s *out);
int state_put(MDB_txn *txn, MDB_dbi dbi, const state_s *state);
int tx_cursor(store_s *s, table_e table, MDB_cursor **out);
/* Make sure of `pages` for what comes; may commit what was decided so far. */
int tx_room(store_s *s, size_t pages);
/* After MDB_MAP_FULL in a transaction with nothing decided: begin it again,
 * with more room, or MDB_MAP_FULL. */
int tx_again(store_s *s);
int tx_begin(store_s *s);
void tx_abort(store_s *s);
size_t tx_used(store_s *s);
size_t store_limit_pages(const store_shared_s *shared);
uint64_t store_mono_ms(void);
int store_errno(int code);

/* --- store_put.c --- */

void store_put(ring_store_s *super, const ring_record_s *group, size_t n,
               ring_verdict_s *verdicts);
/* Drop the oldest that there is. MDB_NOTFOUND: there is nothing to drop. */
int evict_one(store_s *s);

/* --- store_trim.c: channels, removing, times --- */

const rule_s *store_rule(store_s *s, view_s name, uint64_t hash);
int store_channel_get(store_s *s, view_s name, chan_s *out);
/* Put the record back, or drop it if it says nothing; `due`: when it is to be
 * looked at, at the latest; 0: never, or as it is. */
int channel_settle(store_s *s, view_s name, chan_s *c, uint64_t due);
/* Remove from the front what `rule` does not keep, at most `budget`. With
 * `by_age`, *due is when to look again; else only if something is left. */
int channel_trim(store_s *s, view_s name, chan_s *c, const rule_s *rule,
                 bool by_age, size_t budget, uint64_t *due);
int message_remove(store_s *s, view_s name, chan_s *c, uint64_t id,
                   bool is_trim);
void mark_raise(store_s *s, chan_s *c, uint64_t id);
int channel_forget(store_s *s, view_s name, chan_s *c);
int times_first(store_s *s, unsigned char region, MDB_val *key, MDB_val *data);
int times_put(store_s *s, wkey_s *key, view_s data);
int times_del(store_s *s, wkey_s *key);
wkey_s times_key(unsigned char region, uint64_t time, unsigned char kind);
int store_sweep(store_s *s, size_t budget);
int times_due(store_s *s, uint64_t *due);

/* --- store_read.c --- */

int store_committed(store_s *s, uint64_t *committed);

#endif
