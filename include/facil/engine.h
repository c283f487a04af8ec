/* engine.h - what orders, counts and keeps messages, as the registry sees it.
 *
 * An engine takes groups of messages, gives each its id and its place, keeps
 * what has history, and hands every message of every worker to this worker's
 * registry in one order, by pubsub_deliver. Loop thread only. */
#ifndef FACIL_ENGINE_H
#define FACIL_ENGINE_H

#include "view.h"
#include <stdbool.h>

/* How the data of a message may be shown. */
typedef enum {
  MESSAGE_TEXT,  /* valid UTF-8 */
  MESSAGE_JSON,  /* a valid JSON text, UTF-8 */
  MESSAGE_BINARY /* any bytes */
} message_kind_e;

typedef struct {
  view_s channel;
  view_s type;  /* media type */
  view_s event; /* event name; empty: none */
  view_s data;
  view_s key; /* idempotency key; empty: none */
  message_kind_e kind;
  uint32_t ttl_s;  /* seconds that it is kept at most; 0: as its channel says */
  intptr_t origin; /* a connection of this worker that does not get it; 0: none
                    */
  /* Given by the engine: */
  uint64_t id;
  uint64_t hash; /* of the channel */
} message_s;

typedef struct {
  int status;  /* 201; 422: another body under the same key; 503: nothing was
                * published, try again; 507: history is full */
  uint64_t id; /* of a duplicate: the first one's */
  uint32_t subscribers; /* of its channel, on all workers */
  size_t index;         /* of the message in its group */
} published_s;

/* What an engine keeps for a channel that this worker watches. */
typedef struct {
  uint32_t opaque[2];
} engine_ref_s;

/* Called for each message that is read; false: enough. The views end with the
 * call. */
typedef bool (*engine_each_f)(void *arg, const message_s *m);

typedef struct {
  size_t messages, bytes; /* at most; at least one message is given */
} engine_limit_s;

typedef struct {
  uint64_t gap_from, gap_to; /* may be missing, both included; gap_to 0: no gap.
                              * It comes before the messages */
  uint64_t cursor; /* everything up to it was given, or is in the gap */
  bool has_more;   /* read on from the cursor */
} engine_read_s;

typedef struct {
  bool exists;           /* it has subscribers, or a record in the store */
  uint64_t count, bytes; /* kept */
  uint64_t first, last;  /* ids; 0: nothing is kept */
  uint64_t trim;         /* a cursor below it has a gap */
  uint32_t subscribers;
  uint64_t history_count, history_bytes, history_age_ms; /* in force */
} engine_info_s;

typedef struct {
  /* Take over a group, all or nothing; the views are copied before it returns.
   * `done(arg, …)` comes once for each message, in order, later, when they are
   * safe and ordered. -1, and no `done`: EAGAIN, no room or no lock now (503);
   * EMSGSIZE (413). */
  int (*publish)(const message_s *group, size_t n,
                 void (*done)(void *arg, const published_s *result), void *arg);
  /* Bytes that a group may take in all. */
  size_t (*group_max)(void);
  /* Drop the history of a channel; `done` as above, status 201. */
  int (*drop)(view_s channel,
              void (*done)(void *arg, const published_s *result), void *arg);
  /* The 64-bit hash of a channel's name, the same on all workers. */
  uint64_t (*hash)(view_s channel);
  /* One more subscriber of this worker is there. All that was published before
   * has been delivered to the registry when this returns; the id up to which.
   * `ref` is the channel's, zeroed before its first use. */
  uint64_t (*watch)(uint64_t hash, engine_ref_s *ref);
  void (*unwatch)(uint64_t hash, engine_ref_s *ref);
  /* Subscribers of patterns: everything is watched. */
  uint64_t (*watch_all)(void);
  void (*unwatch_all)(void);
  /* Whether a message above `id` was published on a channel that this worker
   * watches; true also if that cannot be told. */
  bool (*is_newer)(uint64_t hash, uint64_t id);
  /* The id up to which everything has been delivered to this worker. */
  uint64_t (*delivered)(void);
  /* The broker's clock: an id given now would be about this. */
  uint64_t (*now)(void);
  /* Whether messages of a channel are kept; of a pattern: of all channels that
   * it matches. */
  bool (*keeps)(view_s channel);
  /* The kept messages of a channel above `since`, oldest first, up to what has
   * been delivered to this worker. -1: EAGAIN, not now; EIO. */
  int (*read)(view_s channel, uint64_t since, engine_limit_s limit,
              engine_each_f each, void *arg, engine_read_s *out);
  /* The same over all channels, in order of id, for a reader of `pattern`:
   * where not all that it matches is kept, there is nothing but a gap. */
  int (*read_all)(view_s pattern, uint64_t since, engine_limit_s limit,
                  engine_each_f each, void *arg, engine_read_s *out);
  /* The cursor from which the last `n` messages of a channel are read. */
  int (*last)(view_s channel, size_t n, uint64_t *since);
  /* The same over all channels, of those messages that `is_wanted`. */
  int (*last_all)(size_t n, engine_each_f is_wanted, void *arg,
                  uint64_t *since);
  int (*info)(view_s channel, engine_info_s *out);
  /* Channels with a record, sorted by their bytes, that begin with `prefix` and
   * come behind `after`. 1: there are more; 0; -1. */
  int (*list)(view_s prefix, view_s after, size_t limit,
              bool (*each)(void *arg, view_s channel,
                           const engine_info_s *info),
              void *arg);
} engine_s;

#endif
