/* store_lmdb.h - the store: what was published, kept in LMDB.
 *
 * It stands behind ring.h's ring_store_s: only a commit writes, under the
 * ring's store lock, so at most one process at a time. Readers are all workers,
 * at any time. What it keeps true:
 *
 * - `committed` moves in the transaction of what it covers: a commit that is
 *   done again after a death puts nothing twice;
 * - a gap can be told exactly: a channel's trim mark is the id of the last
 *   message that was dropped from it (by count, bytes, age, DELETE or because
 *   the store was full; not by the message's own ttl). A channel without a
 *   record has the broker-wide mark `forgotten` for its own, and nobody's mark
 *   is below the store's birth;
 * - whatever ended by age or ttl is never read, also before it was removed;
 * - messages above the slowest worker's place in the ring are not trimmed.
 *
 * A memory store is a file on a tmpfs, written in place without syncs, and all
 * its pages are allocated before they are used: a full tmpfs is an error and
 * never a SIGBUS. A durable store is a file with LMDB's full commit: pages, a
 * sync, then the root with another. It is not mapped for writing, so that no
 * stray pointer reaches it and a full disk is an error of pwrite; and never
 * synced later than answered.
 *
 * Times and ids are microseconds of the broker's clock. Private to src/broker.
 */
#ifndef BROKER_STORE_LMDB_H
#define BROKER_STORE_LMDB_H

#include "ring.h"
#include "rules.h"

enum {
  STORE_SIZE_MIN = 16 << 20,
  STORE_READERS = 8,     /* reads at a time in one process */
  STORE_ERROR_MAX = 512, /* an `err` of this size holds each line whole */
};

/* What a record asks of the store (ring_message_s.op). */
enum {
  STORE_MESSAGE, /* keep it as its channel's rule says; decide its key */
  STORE_DROP,    /* drop the channel's history */
  STORE_TICK     /* nothing but a chance to remove what ended (store_is_due) */
};

typedef struct store_shared_s store_shared_s;
typedef struct store_s store_s;

typedef struct {
  const char *path;     /* of a durable store; NULL: a memory store */
  const char *memory;   /* folder of a memory store; NULL: /dev/shm */
  uint64_t size;        /* bytes, at least STORE_SIZE_MIN */
  bool may_evict;       /* full: drop the oldest; else refuse (507) */
  unsigned slots;       /* of workers: the ring's workers + 1 */
  uint64_t key_us;      /* how long a key is remembered; 0: not at all */
  uint64_t forget_us;   /* how long an empty channel's trim mark is */
  uint64_t lease_us;    /* how far ids are leased ahead */
  uint64_t now;         /* the clock that ids will come from; 0: wall clock */
  const rules_s *rules; /* must live as long as the store is used */
} store_config_s;

/* --- The master, before the fork --- */

/* Make or take over the store; it is this process group's until store_release
 * or the end of its last process. The memory that the workers share is *out.
 * Stale memory stores are removed. -1: one whole line in `err` without its end,
 * and a file that was there has not been touched:
 * EBUSY   another broker has it;
 * EINVAL  size too small; or no store of ours, another format, damaged;
 * else the errno of what the system refused. */
FACIL_MUST_CHECK int store_prepare(const store_config_s *config,
                                   store_shared_s **out, char *err,
                                   size_t err_len);

/* Ids must be above it: for ring_config_s.floor. */
uint64_t store_floor(const store_shared_s *shared);

/* The last process of the group; a memory store's files are removed. */
void store_release(store_shared_s *shared);

/* After waitpid of the worker in `slot`: its reads are over. */
void store_mark_dead(store_shared_s *shared, unsigned slot);

/* Every 100 ms or so, CLOCK_MONOTONIC: 1 and *slot if a read of the worker
 * there was seen to last for more than `limit_ms`, else 0. While it lasts the
 * file grows with every commit. It takes two looks at the same read. */
int store_reader_stuck(store_shared_s *shared, uint64_t now_ms,
                       uint64_t limit_ms, unsigned *slot);

typedef struct {
  uint64_t size, allocated, used; /* bytes of the file */
  uint64_t messages, bytes, channels;
  uint64_t birth, forgotten, committed;
  uint64_t evicted, refused; /* messages, since the start */
} store_figures_s;

/* As of the last commit. Any process. */
void store_figures(const store_shared_s *shared, store_figures_s *out);

/* --- A worker, after the fork --- */

typedef struct {
  unsigned slot;
  uint64_t (*clock)(void *arg);  /* ring_clock */
  uint64_t (*low_id)(void *arg); /* ring_marks().low_id */
  void *arg;
} store_setup_s;

/* Open it in this process: once, and nothing of it is carried over a fork.
 * NULL and ENOMEM, or the errno of a call that the system refused. */
FACIL_MUST_CHECK store_s *store_open(store_shared_s *shared,
                                     const store_setup_s *setup);
void store_close(store_s *store); /* NULL is fine */

/* For ring_commit and ring_commit_wait. Its verdicts: kept; refused, the store
 * is full; duplicate, of the message with the same key, channel and body, also
 * one of the same batch; conflict, the body is another one: then all of its
 * group conflict, and `other` is set in those that are to blame; void, the
 * store failed, or readers hold the pages that were made free. A group is kept
 * or not as a whole; a duplicate in it is no failure. A message without history
 * is not put, but its key is. */
ring_store_s *store_ring(store_s *store);

/* Whether a message on a channel with `rule` is to carry RING_STORE: it has
 * history, or `has_key`, or ids need another lease (durable; an id that was
 * given must be below the ceiling that a restart begins above). */
bool store_concerns(const store_s *store, const rule_s *rule, bool has_key);

/* Something has ended, or ids need a lease, and no commit came to see to it.
 * Then append {.op = STORE_TICK, .flags = RING_STORE}; once a second is enough,
 * and again in the next turn while it is so. */
bool store_is_due(const store_s *store);

/* --- Reading. The loop; in durable mode any thread too, STORE_READERS at a
 * time. Never beyond `until`, the last id that this worker has read from the
 * ring: beyond, everything comes by the ring.
 *
 * Each works in read transactions of about a millisecond. Callbacks run within
 * them: they must be quick, and not call the store. What they are shown is
 * theirs until they return. All return -1 and EAGAIN (too many at a time),
 * ENOMEM or EIO where the store could not be read. --- */

typedef struct {
  uint64_t id;
  uint64_t expires; /* by its own ttl; 0: not */
  uint8_t kind;
  view_s channel, type, event, body;
} stored_s;

/* False: enough, this one was the last. */
typedef bool (*store_each_f)(void *arg, const stored_s *message);

typedef struct {
  size_t messages, bytes; /* at most; at least one message is given */
} store_limit_s;

typedef struct {
  uint64_t gap_from, gap_to; /* may be missing, both included; 0: no gap. It is
                                told before the messages */
  uint64_t cursor;           /* everything up to it was given or told */
  size_t messages, bytes;    /* given */
  bool has_more;             /* call again from the cursor */
} store_result_s;

/* The messages of a channel above `since`, in order, and the gap before them,
 * of one moment. A caller that wants what there is (`first`) passes 0 and
 * overlooks the gap. */
FACIL_MUST_CHECK int store_read(store_s *store, view_s channel, uint64_t since,
                                uint64_t until, store_limit_s limit,
                                store_each_f each, void *arg,
                                store_result_s *out);

/* The same over all channels: for patterns, and once for all subscribers after
 * a lap. The gap of it is that of all channels: if there is one, those that
 * matter must be asked, by store_gap or store_list. */
FACIL_MUST_CHECK int store_read_all(store_s *store, uint64_t since,
                                    uint64_t until, store_limit_s limit,
                                    store_each_f each, void *arg,
                                    store_result_s *out);

/* From where store_read gives the last `n` messages. */
FACIL_MUST_CHECK int store_last(store_s *store, view_s channel, size_t n,
                                uint64_t until, uint64_t *since);
/* The same over all channels, of those messages that `is_wanted`. */
FACIL_MUST_CHECK int store_last_all(store_s *store, size_t n, uint64_t until,
                                    store_each_f is_wanted, void *arg,
                                    uint64_t *since);

typedef struct {
  view_s channel;        /* of store_list only */
  bool exists;           /* has a record */
  uint64_t count, bytes; /* kept, as of the last removal of what ended */
  uint64_t first, last;  /* ids; first is 0 if nothing is kept */
  uint64_t trim;         /* the mark: a cursor below it has a gap. Of a channel
                            without a record too */
} store_info_s;

FACIL_MUST_CHECK int store_channel(store_s *store, view_s channel,
                                   store_info_s *out);

/* 1, and ids from *from to *to may be missing; 0: nothing above `since` is. */
FACIL_MUST_CHECK int store_gap(store_s *store, view_s channel, uint64_t since,
                               uint64_t until, uint64_t *from, uint64_t *to);

/* The channels with a record whose names begin with `prefix`, sorted by bytes,
 * behind `after`; at most `limit`. 1: there are more; 0: that was all. `each`
 * may end it: then 1. */
FACIL_MUST_CHECK int store_list(store_s *store, view_s prefix, view_s after,
                                size_t limit,
                                bool (*each)(void *arg, const store_info_s *i),
                                void *arg);

/* What became of a worker's own message when a lap hid it: kept, duplicate,
 * conflict; RING_VOID: it cannot be told. */
FACIL_MUST_CHECK int store_verdict(store_s *store, view_s channel, uint64_t id,
                                   view_s key, view_s body,
                                   ring_verdict_s *out);

#endif
