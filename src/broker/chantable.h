/* chantable.h - who is interested in which channel, in every worker's sight.
 *
 * A hash table in shared memory, keyed by the 64-bit keyed hash of a channel's
 * name. An entry holds one count of subscriptions for each worker slot, the id
 * of the last message and the id before it. Only channels with a subscriber
 * have an entry; memory that was never used is never touched: an entry costs
 * 40 bytes and 4 a slot, and its share of the buckets.
 *
 * Who may do what:
 * - a worker adds and removes its own subscriptions; the first of a channel
 *   takes the table's lock, all others are one atomic add;
 * - the holder of the ring's store lock looks entries up, notes ids and gives
 *   empty entries back (chantable_reap). Nobody else takes an entry out, so for
 *   this one every look-up is exact, without a lock and without a retry;
 * - anybody may ask for counts and ids: a version counter tells a look-up that
 *   met a reap, which is then made again.
 *
 * Deaths: every change is one store from right to right, so chains are whole
 * at each step; the next to take the lock finds what was left hanging.
 *
 * Two names with one hash would share an entry: too much interest, never too
 * little. Private to src/broker. */
#ifndef BROKER_CHANTABLE_H
#define BROKER_CHANTABLE_H

#include "shlock.h"

#define CHANTABLE_SLOTS_MAX 256

typedef struct chantable_shared_s chantable_shared_s;

/* One process's (or, in tests, thread's) handle. */
typedef struct {
  chantable_shared_s *shared;
  shlock_user_s user;
  shlock_watch_s watch;
  unsigned slot;
} chantable_s;

/* One worker's hold on one channel; zeroed before its first use. A worker keeps
 * exactly one for a channel. */
typedef struct {
  uint32_t entry; /* 0: none */
  uint32_t own;   /* counted here, because the table could not take them */
} chanref_s;

/* A set of worker slots. */
typedef struct {
  uint64_t bits[CHANTABLE_SLOTS_MAX / 64];
} slotset_s;

static inline void slotset_add(slotset_s *s, unsigned slot) {
  s->bits[slot / 64] |= 1ull << slot % 64;
}
static inline bool slotset_has(const slotset_s *s, unsigned slot) {
  return s->bits[slot / 64] >> slot % 64 & 1;
}

/* The bytes that a table of so many entries takes; a multiple of 64. */
size_t chantable_bytes(uint32_t entries, unsigned slots);

/* Make a table in zeroed shared memory, before the fork. -1 and errno. */
FACIL_MUST_CHECK int chantable_init(void *mem, uint32_t entries,
                                    unsigned slots);

/* A handle for the worker in `slot`; nothing to release. */
void chantable_open(chantable_s *t, void *mem, unsigned slot);

/* One more subscription of this worker to `hash`. True: the table counts it,
 * seq_cst, before this returns, so whoever moves `stable` later sees it. False:
 * the table is full, or its lock could not be had (shlock_take): `ref->own`
 * counts it, and the worker must pass for interested in everything. Loop. */
bool chantable_add(chantable_s *t, uint64_t hash, chanref_s *ref);

/* One less. True: it was counted by the table. Takes no lock. Loop. */
bool chantable_remove(chantable_s *t, chanref_s *ref);

/* Subscriptions in all workers, without those that a worker counts by itself.
 * Any thread. */
uint64_t chantable_subscribers(const chantable_s *t, uint64_t hash);

/* The last id on the channel and the one before it, as far as they were
 * published while the channel had an entry; 0: none known. -1 and ENOENT. */
FACIL_MUST_CHECK int chantable_last(const chantable_s *t, uint64_t hash,
                                    uint64_t *last, uint64_t *before);

/* --- Only for the holder of the store lock --- */

/* The entry of `hash`, or 0; valid until the store lock is given back. */
uint32_t chantable_find(const chantable_s *t, uint64_t hash);
/* A message with `id` was kept. Done again for the same id, nothing changes. */
void chantable_note(const chantable_s *t, uint32_t entry, uint64_t id);
/* Add to `set` the slots of `among` that have a subscriber of the entry. */
void chantable_interest(const chantable_s *t, uint32_t entry,
                        const slotset_s *among, slotset_s *set);
/* Give back entries without subscribers; returns at once when there are none or
 * when somebody holds the table's lock. */
void chantable_reap(chantable_s *t);
/* Whether chantable_reap has something to do. */
bool chantable_is_littered(const chantable_s *t);

/* --- Only for the master --- */

/* The worker of `slot` is dead: its counts are zero. Takes no lock. */
void chantable_drop_slot(chantable_s *t, unsigned slot);
/* The watchdog's look at the table's lock: see shlock_is_stuck. */
bool chantable_is_stuck(chantable_s *t, uint64_t now_ms, uint64_t limit_ms,
                        int *slot, int32_t *tid);

/* Entries in use, and the most that were at once (for metrics and tests). */
uint32_t chantable_used(const chantable_s *t);

/* The table's lock, for tests and for shlock_turn. */
shlock_s *chantable_lock(const chantable_s *t);

#endif
