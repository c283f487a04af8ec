/* engine.h - what orders, counts and keeps messages, as the registry sees it.
 *
 * An engine takes groups of messages, gives each its id and its place, and
 * hands every message of every worker to this worker's registry in one order,
 * by pubsub_deliver. Loop thread only, unless said otherwise. */
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
  message_kind_e kind;
  intptr_t
      origin; /* a connection of this worker that does not get it; 0: none */
  /* Given by the engine: */
  uint64_t id;
  uint64_t hash; /* of the channel */
} message_s;

typedef struct {
  int status;  /* 201; 503: nothing was published, try again; 507: full */
  uint64_t id; /* of the group's last message */
  uint32_t subscribers; /* of its channel, on all workers */
} published_s;

/* What an engine keeps for a channel that this worker watches. */
typedef struct {
  uint32_t opaque[2];
} engine_ref_s;

typedef struct {
  /* Take over a group, all or nothing; the views are copied before it returns.
   * `done(arg, …)` comes once, later, when the messages are safe and ordered.
   * -1, and no `done`: EAGAIN, no room or no lock now (503); EMSGSIZE (413). */
  int (*publish)(const message_s *group, size_t n,
                 void (*done)(void *arg, const published_s *result), void *arg);
  /* The 64-bit hash of a channel's name, the same on all workers. */
  uint64_t (*hash)(view_s channel);
  /* One more subscriber of this worker is there. All that was published before
   * has been delivered to the registry when this returns; the id up to which.
   * `ref` is the channel's, zeroed before its first use. */
  uint64_t (*watch)(uint64_t hash, engine_ref_s *ref);
  void (*unwatch)(uint64_t hash, engine_ref_s *ref);
  /* Whether a message above `id` was published on a channel that this worker
   * watches; true also if that cannot be told. */
  bool (*is_newer)(uint64_t hash, uint64_t id);
  /* The broker's clock: an id given now would be about this. */
  uint64_t (*now)(void);
} engine_s;

#endif
