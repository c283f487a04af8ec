/* ring_shared.h - the ring's memory, as its two source files see it.
 *
 * The mapping: this header, the worker slots, the channel table, the bytes.
 * Everything in it is found by offsets; nothing in it is a pointer. Words that
 * two processes may touch at once are atomic, the bytes of records too (as
 * 64-bit words), so a torn read is a value that is thrown away, never undefined
 * behaviour. Private to ring.c and ring_commit.c. */
#ifndef BROKER_RING_SHARED_H
#define BROKER_RING_SHARED_H

#include "ring.h"
#include "ring_hook.h"
#include <facil/siphash.h>

enum { SLOT_FREE, SLOT_LIVE };
enum { THREAD_LOOP, THREAD_COMMIT, THREADS };

/* A worker's own line. */
typedef struct {
  _Alignas(64) _Atomic uint64_t cursor;
  _Atomic uint64_t cursor_id;
  _Atomic uint32_t state;
  _Atomic uint32_t is_sleeping;
  _Atomic uint32_t watches;      /* interested in everything if not 0 */
  _Atomic uint32_t lives;        /* workers that had this slot */
  _Atomic int32_t tids[THREADS]; /* who may hold a lock in its name */
} slot_s;

typedef struct {
  _Atomic uint64_t position, id;
} mark_s;

typedef struct {
  _Alignas(64) shlock_s lock;       /* appending */
  _Alignas(64) shlock_s store_lock; /* committing */
  _Alignas(64) _Atomic uint64_t reserve;
  _Alignas(64) _Atomic uint64_t head;
  _Atomic uint64_t last_id; /* the last one given; under the ring lock */
  _Alignas(64) _Atomic uint64_t stable;
  /* One of the two has the position `stable`: it tells the id of the record
   * before it. The other one is written before stable moves. */
  mark_s marks[2];
  _Alignas(64) int64_t clock_offset; /* what follows is set before the fork */
  siphash_key_s key;
  slot_s slots[];
} shared_s;

/* A record begins with this, and goes on with the channel, type, event, key and
 * body, each padded to 8 bytes. */
typedef struct {
  uint32_t bytes; /* of the whole record */
  uint16_t flags;
  uint8_t kind, op;
  uint64_t id;
  uint64_t verdict; /* verdict << 56 | id of the first one; one store */
  uint64_t hash;
  uint64_t connection;
  uint16_t slot, life; /* of the origin */
  uint32_t ttl;
  uint32_t body;
  uint16_t type, event;
  uint16_t channel, key;
  uint32_t group_left;
} header_s;
_Static_assert(sizeof(header_s) == 64, "a header is eight words");

/* A channel that a batch touched. */
typedef struct {
  uint64_t hash;
  uint32_t entry;
} touched_s;
enum { TOUCHED_MAX = 1024 };

/* What a commit needs, used by one thread at a time. */
typedef struct {
  char *scratch; /* for the record that meets the end */
  ring_record_s *group;
  ring_verdict_s *verdicts;
  size_t group_cap;
  touched_s touched[TOUCHED_MAX];
  size_t touched_count; /* TOUCHED_MAX: too many to tell */
  slotset_s origins;
  int32_t tid; /* that is registered */
} commit_s;

struct ring_s {
  shared_s *shared;
  _Atomic uint64_t *words; /* the bytes */
  size_t size, record_max, body_max;
  unsigned slots;
  int slot; /* -1: none */
  uint16_t life;
  bool is_durable, is_owner, is_reading;
  bool must_look; /* appended since the last commit, or it left something */
  uint64_t cursor, last_id;
  uint64_t lap_from, lap_to;
  shlock_user_s lock_user;
  shlock_watch_s lock_watch, store_watch;
  chantable_s table;
  char *scratch; /* for reading */
  commit_s commit;
  size_t map_bytes;
  int eventfds[CHANTABLE_SLOTS_MAX];
};

enum { RING_CHUNK = 64 * 1024, RING_NAMES_MAX = 8 * 1024 };

static inline void ring_fence(void) {
  atomic_thread_fence(memory_order_seq_cst);
}

static inline size_t ring_pad(size_t n) {
  return (n + 7) & ~(size_t)7;
}

static inline slot_s *ring_slot(const ring_s *r, unsigned slot) {
  return &r->shared->slots[slot];
}

static inline uint64_t ring_load(const _Atomic uint64_t *mark) {
  return atomic_load_explicit(mark, memory_order_acquire);
}

/* Copy `n` bytes, a multiple of 8, from position `at`. */
void ring_copy_out(const ring_s *r, uint64_t at, void *to, size_t n);

/* The record at `bytes`, which hold all of it. */
void ring_record_of(const ring_s *r, uint64_t position, const char *bytes,
                    ring_record_s *out);

/* Write the descriptor of `slot`. */
void ring_ring(const ring_s *r, unsigned slot);

#endif
