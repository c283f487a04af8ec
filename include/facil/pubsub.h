/* pubsub.h - channels, their subscribers, and the fan-out.
 *
 * The promise: a subscriber gets each message of its channels once, in order of
 * id, or is told of the gap. A subscription is a connection, a channel, and a
 * cursor; nothing is queued for a connection. What is new on a channel lies
 * once for each kind of reader in a tail: ready frames, one behind the other.
 * Bringing a subscriber up to date is one send from its cursor to the end.
 *
 * Loop thread only. */
#ifndef FACIL_PUBSUB_H
#define FACIL_PUBSUB_H

#include "engine.h"
#include "facil.h"

typedef struct reader_s reader_s;

/* A kind of reader: how a message looks to it. One const table per kind. */
typedef struct {
  /* The bytes of the frame that carries `m`. */
  size_t (*frame_size)(const message_s *m);
  /* Write it: exactly that many. */
  void (*frame_write)(const message_s *m, char *out);
  /* Messages from id `from` to `to`, both included, may be missing on
   * `channel`: tell the reader, or end it. `is_slow`: for no other reason than
   * that it lagged, and nothing is kept. Called from reader_ready. */
  void (*on_gap)(reader_s *r, view_s channel, uint64_t from, uint64_t to,
                 bool is_slow);
} reader_kind_s;

typedef struct {
  size_t tail_size;  /* of a channel and kind: what slow readers may lag */
  size_t tail_total; /* of all tails of this process */
  uint32_t subscriptions_max; /* of one connection */
} pubsub_settings_s;

FACIL_PUBLIC void pubsub_set(const engine_s *engine,
                             const pubsub_settings_s *settings);

/* ---- channels ---------------------------------------------------------- */

/* NULL if `name` may be the name of a channel (1 to 255 bytes of UTF-8, no
 * control characters, no '*', not "." or ".."); else a static sentence that
 * says why not. */
FACIL_PUBLIC const char *channel_name_fault(view_s name);

/* NULL if `pattern` may be one: a name in which `*` stands for a part (a run
 * without ':' or '/'), or a final `**` for all the rest; else why not. */
FACIL_PUBLIC const char *pattern_fault(view_s pattern);

FACIL_PUBLIC bool pattern_matches(view_s pattern, view_s name);

/* ---- publishing -------------------------------------------------------- */

/* Publish one message; its channel's name has been checked. As
 * engine_s.publish. */
FACIL_PUBLIC FACIL_MUST_CHECK int
pubsub_publish(const message_s *message,
               void (*done)(void *arg, const published_s *result), void *arg);

/* A group, all or nothing: `done` comes once for each message. */
FACIL_PUBLIC FACIL_MUST_CHECK int
pubsub_publish_group(const message_s *group, size_t n,
                     void (*done)(void *arg, const published_s *result),
                     void *arg);

/* The engine, for what only reads: history, info, lists. */
FACIL_PUBLIC const engine_s *pubsub_engine(void);

/* Find out what a message is from the media type that came with it (empty:
 * none) and its bytes: fills kind and type. What has no type, or the one that
 * curl sends by itself (application/x-www-form-urlencoded), is text if it is
 * valid UTF-8, else binary. NULL, or a static sentence: what is announced as
 * JSON and does not parse, as text and is not UTF-8, or a type that is none. */
FACIL_PUBLIC const char *message_classify(message_s *m, view_s media_type);

/* ---- subscribing ------------------------------------------------------- */

typedef struct subscription_s {
  facil_member_s member; /* first: the set's member is the subscription */
  struct run_s *run;     /* NULL: free for use */
  struct subscription_s *next;
  uint64_t at; /* the reader's place in the run; 0: before all that is kept */
  uint64_t start;  /* the cursor that it began with */
  uint64_t cursor; /* the id up to which it has everything */
} subscription_s;

/* Lies in the dialect's object of a connection. */
struct reader_s {
  const reader_kind_s *kind;
  intptr_t uuid;
  subscription_s *subs;
  struct slice_s *slice; /* what is being offered from the store */
  subscription_s *slice_of;
  uint64_t
      cursor; /* the highest id sent; of a merged reader: all up to it was */
  uint32_t count;
  bool was_ready;       /* has had what there was when it began */
  bool is_merged;       /* one cursor for all channels: ids come in one order */
  subscription_s first; /* most have one */
};

FACIL_PUBLIC void reader_init(reader_s *r, intptr_t uuid,
                              const reader_kind_s *kind);

/* Leave all channels. Also for a reader that is all zero. */
FACIL_PUBLIC void reader_fini(reader_s *r);

/* Subscribe to a channel, or to a pattern (a name with a '*'; it has been
 * checked), live from now on. A publish that begins after this has returned
 * reaches the reader. `*cursor` is the id behind which its messages begin. 0;
 * -1: EEXIST, it is subscribed already (`*cursor` is set); ENOSPC, it has
 * subscriptions_max; ENOMEM. */
FACIL_PUBLIC FACIL_MUST_CHECK int reader_subscribe(reader_s *r, view_s channel,
                                                   uint64_t *cursor);

/* Go back: what is kept above `cursor` on a channel comes (again), and a gap is
 * told if something above it is gone; with 0 all that is kept comes. A merged
 * reader goes back on all its channels (`channel` is not looked at). 0; -1 and
 * ENOENT: it is not subscribed. */
FACIL_PUBLIC int reader_rewind(reader_s *r, view_s channel, uint64_t cursor);

/* What lies above `since` and below where a subscription goes on was given in
 * another way: it does not come again by a pattern that has it too. */
FACIL_PUBLIC void reader_has(reader_s *r, view_s channel, uint64_t since);

/* 0; -1 and ENOENT: it is not subscribed. */
FACIL_PUBLIC int reader_unsubscribe(reader_s *r, view_s channel);

/* The channel that it subscribed to last; empty: none. Valid until it leaves.
 */
FACIL_PUBLIC view_s reader_channel(const reader_s *r);

/* From the connection's on_ready and on_sent. */
FACIL_PUBLIC void reader_ready(reader_s *r);
FACIL_PUBLIC size_t reader_sent(reader_s *r, size_t sent);

/* The id up to which everything has been delivered to this worker. */
FACIL_PUBLIC uint64_t pubsub_delivered(void);

/* The broker's clock: an id given now would be about this. */
FACIL_PUBLIC uint64_t pubsub_now(void);

/* The id up to which nothing is missing on any of its channels; 0: it lags. */
FACIL_PUBLIC uint64_t reader_cursor(const reader_s *r);

/* ---- waiting for one message ------------------------------------------- */

/* Waits for the next message of any of some channels: for a long poll. Lies in
 * the waiter's object; `on_news` is called once, in a later turn. */
typedef struct waiter_s {
  list_s told; /* in the list of those that are to be called */
  struct wait_s *waits;
  void (*on_news)(struct waiter_s *w);
} waiter_s;

FACIL_PUBLIC void waiter_init(waiter_s *w, void (*on_news)(waiter_s *w));
/* As reader_subscribe. */
FACIL_PUBLIC FACIL_MUST_CHECK int waiter_add(waiter_s *w, view_s channel,
                                             uint64_t *cursor);
FACIL_PUBLIC void waiter_fini(waiter_s *w);

/* ---- for the engine ---------------------------------------------------- */

/* The next message of the one order: the tails of its channel grow. */
FACIL_PUBLIC void pubsub_deliver(const message_s *message);

/* Whether more may be delivered in this turn: false while a tail that is full
 * has not been offered to all of its readers. */
FACIL_PUBLIC bool pubsub_can_take(void);

/* This worker was overtaken by the ring: messages up to id `to` were not
 * delivered. */
FACIL_PUBLIC void pubsub_lapped(uint64_t to);

/* Once a turn, before messages are delivered: gives back what is read by all.
 */
FACIL_PUBLIC void pubsub_turn(void);

/* What the registry holds, for tests and metrics. */
typedef struct {
  size_t channels, subscriptions, tails, tail_bytes;
} pubsub_stats_s;
FACIL_PUBLIC pubsub_stats_s pubsub_stats(void);

#endif
