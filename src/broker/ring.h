/* ring.h - the doorbell: one shared ring of records between all workers.
 *
 * The master makes it before the fork. Every worker appends what its clients
 * publish and reads what all have published, in one order. Three marks tell how
 * far a record is:
 *
 *   stable    decided: delivered, answered, readable in the store
 *   head      whole, pending: nobody may act on it but a commit
 *   reserve   may be overwritten at any moment
 *
 *   cursor of a worker <= stable <= head <= reserve, head - stable <= size
 *
 * Positions are bytes since the start and never wrap; a record's place in the
 * mapping is its position modulo the size. A record is copied in and out in
 * words, in two spans where it meets the end: there are no pad records, so the
 * room is exactly what is free and no step has a special case. A commit hands
 * records to the store in place, and copies only the one that meets the end.
 *
 * A death of any process at any step costs nobody anything: what is whole is
 * committed by whoever comes next, what is not whole never happened.
 *
 * One handle belongs to one loop. ring_commit_wait alone may run in another
 * thread of its process. The ring knows no event loop: it gives a descriptor to
 * poll. Private to src/broker. */
#ifndef BROKER_RING_H
#define BROKER_RING_H

#include "chantable.h"
#include <facil/view.h>

typedef struct ring_s ring_s;

typedef struct {
  size_t size;        /* bytes, a multiple of 64, at least 16 x message_max */
  size_t message_max; /* longest body */
  unsigned workers;   /* slots are one more: the spare one of a restart */
  uint32_t channels;  /* entries of the channel table */
  uint64_t floor;     /* every id is above this one (the store's ceiling) */
  bool is_durable;    /* the store lock may be held for long: not watched */
} ring_config_s;

/* Make the ring. The caller owns it. NULL and EINVAL (sizes, see above; no or
 * more than 255 workers), or the errno of a call that the kernel refused. */
FACIL_MUST_CHECK ring_s *ring_new(const ring_config_s *config);

/* Another handle on the same ring, in the same process. NULL and ENOMEM. */
FACIL_MUST_CHECK ring_s *ring_share(ring_s *r);

/* Release a handle; the one of ring_new also its mapping and descriptors, in
 * this process. NULL is fine. */
void ring_free(ring_s *r);

/* --- Slots, deaths --- */

/* This process is the worker in `slot` now: its cursor is `stable`. Returns the
 * descriptor to poll for reading, which stays the ring's. -1: EBUSY, the slot
 * is taken; EINVAL, there is none. */
FACIL_MUST_CHECK int ring_join(ring_s *r, unsigned slot);

/* Master, after waitpid of the worker in `slot`, however it ended: the slot is
 * free, its counts are zero, and every worker is woken, asleep or not. */
void ring_mark_dead(ring_s *r, unsigned slot);

/* Master, every 100 ms or so: 1 and *slot if the worker there has held one of
 * the locks for more than `limit_ms`, else 0. `now_ms` is CLOCK_MONOTONIC. It
 * takes two or three looks until a holder is told. */
int ring_lock_holder(ring_s *r, uint64_t now_ms, uint64_t limit_ms, int *slot);

/* --- Publishing --- */

enum { RING_STORE = 1 }; /* flag: concerns the store (history, a key, a drop) */

typedef struct {
  uint64_t hash;       /* ring_hash of the channel */
  uint64_t connection; /* that is not to get it back; 0: none */
  uint32_t ttl;        /* seconds; 0: none */
  uint8_t kind;        /* of content: the caller's own */
  uint8_t op;          /* message, drop and so on: the caller's own */
  uint16_t flags;      /* RING_STORE, and bits above it of the caller's own */
  view_s channel, type, event, key, body; /* the first four: < 64 KiB each,
                                             together at most 8 KiB */
} ring_message_s;

/* Where a message went. */
typedef struct {
  uint64_t position, id;
} ring_place_s;

/* A new turn of the loop begins: locks that timed out may be tried again. */
void ring_turn(ring_s *r);

/* Append `n` >= 1 messages as one group: all of them, in this order, with ids
 * in a row, or none. Copies everything. They are pending then; their verdicts
 * come by ring_read. -1, and nothing happened:
 * EMSGSIZE  over a quarter of the ring, or a body or names too long;
 * EAGAIN    no room before older ones are stable: answer 503;
 * ETIMEDOUT the lock could not be had within 100 ms; after one time-out it is
 *           only tried, once a turn: answer 503. */
FACIL_MUST_CHECK int ring_append(ring_s *r, const ring_message_s *messages,
                                 size_t n, ring_place_s *places);

/* The bytes that a message takes in the ring. */
size_t ring_bytes(const ring_message_s *m);
/* The most that one ring_append takes. */
size_t ring_group_max(const ring_s *r);

/* The keyed hash of a channel's name, the same in all workers. */
uint64_t ring_hash(const ring_s *r, view_s channel);

/* --- Records --- */

typedef enum {
  RING_PENDING,   /* not decided: only a commit sees this */
  RING_KEPT,      /* 201; the only ones that are delivered */
  RING_REFUSED,   /* 507: history is full */
  RING_DUPLICATE, /* 201 with the id of the first one, `other` */
  RING_CONFLICT,  /* 422: another body under the same key */
  RING_VOID       /* 503: the store failed */
} ring_verdict_e;

typedef struct {
  ring_verdict_e verdict;
  uint64_t other; /* of a duplicate: the id of the first one */
} ring_verdict_s;

typedef struct {
  uint64_t position, id;
  ring_verdict_s verdict;
  bool is_own;         /* appended by this worker, since it joined */
  uint32_t group_left; /* records of its group that follow */
  uint64_t hash, connection;
  uint32_t ttl;
  uint8_t kind, op;
  uint16_t flags;
  view_s channel, type, event, key, body; /* borrowed for the callback */
} ring_record_s;

/* --- Commit --- */

/* The store as a commit sees it; the first member of the real one. All calls
 * come under the store lock, so at most one process is in them. */
typedef struct ring_store_s {
  const struct ring_store_ops_s *ops;
} ring_store_s;

typedef struct ring_store_ops_s {
  /* Begin the transaction; *committed is the highest id that the store covers.
   * -1: it cannot: the records stay pending and are tried again. */
  int (*begin)(ring_store_s *s, uint64_t *committed);
  /* Decide a group, all or nothing, and put what is kept. Views lie in the
   * ring: copy. */
  void (*put)(ring_store_s *s, const ring_record_s *group, size_t n,
              ring_verdict_s *verdicts);
  /* Trim, expire, set committed to `last_id`, commit. -1: it failed, with an
   * outcome that reopen tells. */
  int (*commit)(ring_store_s *s, uint64_t last_id);
  /* After a failed commit: what does the store cover? -1: it cannot tell. */
  int (*reopen)(ring_store_s *s, uint64_t *committed);
} ring_store_ops_s;

/* Commit what is pending, in every turn after the sockets were read; a loop's
 * way (memory mode): it never waits. `store` may be NULL: nothing has history,
 * everything is kept. 0: done, or a living worker is at it, which will look
 * again. 1: there is more: next turn, without sleeping (ring_may_sleep insists
 * on it). -1: the store failed, with its errno; what concerns it stays pending:
 * call again after a while. */
FACIL_MUST_CHECK int ring_commit(ring_s *r, ring_store_s *store);

/* Durable mode. The loop, in every turn: true if its commit thread must be
 * kicked. The thread: waits for the store lock and commits what is pending
 * then; results as above. */
bool ring_commit_due(ring_s *r);
FACIL_MUST_CHECK int ring_commit_wait(ring_s *r, ring_store_s *store);

/* --- Reading --- */

/* Call `on_record` for the records up to `stable`, in order: each one that was
 * kept, and each of this worker's own whatever its verdict. Ends after
 * `max_records` or when `max_bytes` are reached (at least one record); never
 * goes beyond what was stable at the call. Records are copied and checked
 * before they are shown. Returns the number of records passed, 0 at the end.
 * -1 and EOVERFLOW: lapped; the cursor is at `stable` again, ring_lapped tells
 * what may be missing. `on_record` may append, not read. */
FACIL_MUST_CHECK int
ring_read(ring_s *r, size_t max_bytes, size_t max_records,
          void (*on_record)(void *arg, const ring_record_s *rec), void *arg);

/* Of the last lap: everything above *from up to *to may be missing. */
void ring_lapped(const ring_s *r, uint64_t *from, uint64_t *to);

/* The id up to which this worker has read: where a subscriber joins. */
uint64_t ring_last_id(const ring_s *r);

/* What became of this worker's own record, when a lap hid it. -1: EAGAIN, it is
 * not stable yet; EOVERFLOW, it was overwritten: the store knows, if it was for
 * the store, else answer 503. */
FACIL_MUST_CHECK int ring_verdict(ring_s *r, ring_place_s place,
                                  ring_verdict_s *out);

/* --- Sleep --- */

/* Before a wait: true, and who moves `stable` will ring the descriptor if it
 * concerns this worker; or false: stay awake, there is something to do. */
FACIL_MUST_CHECK bool ring_may_sleep(ring_s *r);
/* After every such wait, before ring_read; `was_rung`: the descriptor was
 * readable. */
void ring_woke(ring_s *r, bool was_rung);

/* --- Interest --- */

/* One more, one less subscription of this worker to a channel (see
 * chantable_add). After ring_subscribe: read to `stable`, join at ring_last_id,
 * then answer: whatever is published after the answer is then delivered. Where
 * the table cannot count it, the worker is woken for everything. */
void ring_subscribe(ring_s *r, uint64_t hash, chanref_s *ref);
void ring_unsubscribe(ring_s *r, chanref_s *ref);
/* Subscribers of patterns: `by` more (less) of them want everything. */
void ring_watch_all(ring_s *r, int by);
/* Subscribers in all workers; `ref` (or NULL) adds what this one counts. */
uint64_t ring_subscribers(const ring_s *r, uint64_t hash, const chanref_s *ref);
chantable_s *ring_channels(ring_s *r);

/* --- Figures --- */

typedef struct {
  uint64_t reserve, head, stable; /* read in the order that keeps <= true */
  uint64_t stable_id;             /* id of the last record below stable */
  uint64_t low_id;                /* up to which every live worker has read */
  size_t size;
} ring_marks_s;

void ring_marks(ring_s *r, ring_marks_s *out);

/* The broker's clock: microseconds, wall clock at the start, then steady. */
uint64_t ring_clock(const ring_s *r);

#endif
