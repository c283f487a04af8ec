/* engine_local.c - ties the ring to the loop and the registry.
 *
 * Each turn: commit what is pending, then take the ring's records up to
 * `stable`: what was kept goes to the registry, and whoever published a record
 * of this worker gets its answer. Invariant: answers are given in the order of
 * the ring, each once, and none before its record is stable; after a lap too.
 */
#include "engine_local.h"
#include <errno.h>
#include <facil/facil.h>
#include <facil/log.h>
#include <facil/pubsub.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READ_BYTES (1u << 20) /* of records, in a turn */
#define READ_RECORDS 1024u

_Static_assert(sizeof(engine_ref_s) == sizeof(chanref_s), "one is the other");

/* Own groups that wait for their verdict, oldest first. */
typedef struct {
  ring_place_s place; /* of the group's last message */
  uint64_t hash;
  void (*done)(void *arg, const published_s *result);
  void *arg;
} owed_s;

static ring_s *ring;
static uint64_t born; /* ids up to this one are of an earlier broker */
static int wake_fd;
static owed_s *owed; /* a ring of its own; cap is a power of two */
static size_t owed_at, owed_used, owed_cap;
static bool must_stay_awake; /* the last commit left something */
static uint64_t logged_ms;

/* ---- answers ----------------------------------------------------------- */

static owed_s *owed_first(void) {
  return &owed[owed_at & (owed_cap - 1)];
}

static int owed_room(void) {
  if (owed_used < owed_cap)
    return 0;
  size_t cap = owed_cap ? owed_cap * 2 : 64;
  owed_s *bigger = malloc(cap * sizeof *bigger);
  if (!bigger)
    return -1;
  for (size_t i = 0; i < owed_used; i++)
    bigger[i] = owed[(owed_at + i) & (owed_cap - 1)];
  free(owed);
  owed = bigger;
  owed_at = 0;
  owed_cap = cap;
  return 0;
}

static int status_of(ring_verdict_e verdict) {
  switch (verdict) {
  case RING_KEPT:
  case RING_DUPLICATE:
    return 201;
  case RING_REFUSED:
    return 507;
  case RING_CONFLICT:
    return 422;
  default:
    return 503;
  }
}

static void answer_first(const ring_verdict_s *verdict) {
  owed_s o = *owed_first();
  owed_at++;
  owed_used--;
  published_s result = {
      .status = status_of(verdict->verdict),
      .id = verdict->verdict == RING_DUPLICATE ? verdict->other : o.place.id};
  if (result.status == 201)
    result.subscribers = (uint32_t)ring_subscribers(ring, o.hash, NULL);
  o.done(o.arg, &result);
}

/* ---- records ----------------------------------------------------------- */

static void deliver(const ring_record_s *rec) {
  message_s m = {.channel = rec->channel,
                 .type = rec->type,
                 .event = rec->event,
                 .data = rec->body,
                 .kind = (message_kind_e)rec->kind,
                 .origin = rec->is_own ? (intptr_t)rec->connection : 0,
                 .id = rec->id,
                 .hash = rec->hash};
  pubsub_deliver(&m);
}

static void on_record(void *arg, const ring_record_s *rec) {
  (void)arg;
  if (rec->verdict.verdict == RING_KEPT)
    deliver(rec);
  if (rec->is_own && owed_used && owed_first()->place.position == rec->position)
    answer_first(&rec->verdict);
}

/* Overtaken: what was not delivered is a gap, and own records are answered by
 * what can still be told of them. */
static void on_lap(void) {
  uint64_t from, to;
  ring_lapped(ring, &from, &to);
  if (log_seldom(&logged_ms))
    log_line(LOG_WARN, "lapped", "from=%llu to=%llu", (unsigned long long)from,
             (unsigned long long)to);
  pubsub_lapped(to);
  while (owed_used) {
    ring_verdict_s verdict = {.verdict = RING_VOID};
    if (ring_verdict(ring, owed_first()->place, &verdict) < 0 &&
        errno == EAGAIN)
      break;
    answer_first(&verdict);
  }
}

/* Take records up to what was stable at the call, or up to a turn's budget. */
static int take(size_t bytes, size_t records) {
  int n = ring_read(ring, bytes, records, on_record, NULL);
  if (n < 0) {
    on_lap();
    return 1;
  }
  return n;
}

/* ---- the loop's turns -------------------------------------------------- */

static bool turn(void *arg) {
  (void)arg;
  ring_turn(ring);
  pubsub_turn();
  int more = ring_commit(ring, NULL);
  must_stay_awake = more != 0;
  return pubsub_can_take() && take(READ_BYTES, READ_RECORDS) > 0;
}

static bool may_sleep(void *arg) {
  (void)arg;
  return !must_stay_awake && ring_may_sleep(ring);
}

static void woke(void *arg) {
  (void)arg;
  ring_woke(ring, true);
}

static bool is_busy(void *arg) {
  (void)arg;
  return owed_used > 0;
}

/* ---- the engine -------------------------------------------------------- */

static void to_ring(const message_s *m, ring_message_s *r) {
  *r = (ring_message_s){.hash = ring_hash(ring, m->channel),
                        .connection = (uint64_t)m->origin,
                        .kind = (uint8_t)m->kind,
                        .channel = m->channel,
                        .type = m->type,
                        .event = m->event,
                        .body = m->data};
}

static int publish_one(const message_s *m, ring_place_s *place,
                       uint64_t *hash) {
  ring_message_s r;
  to_ring(m, &r);
  *hash = r.hash;
  return ring_append(ring, &r, 1, place);
}

static int publish_group(const message_s *group, size_t n, ring_place_s *last,
                         uint64_t *hash) {
  ring_message_s *r = calloc(n, sizeof *r);
  ring_place_s *places = calloc(n, sizeof *places);
  int status = -1;
  if (r && places) {
    for (size_t i = 0; i < n; i++)
      to_ring(&group[i], &r[i]);
    *hash = r[n - 1].hash;
    status = ring_append(ring, r, n, places);
    *last = places[n - 1];
  } else {
    errno = EAGAIN;
  }
  int saved = errno;
  free(r);
  free(places);
  errno = saved;
  return status;
}

static int publish(const message_s *group, size_t n,
                   void (*done)(void *arg, const published_s *result),
                   void *arg) {
  owed_s o = {.done = done, .arg = arg};
  if (owed_room() <
      0) { /* an answer that could not be kept is never promised */
    errno = EAGAIN;
    return -1;
  }
  int r = n == 1 ? publish_one(group, &o.place, &o.hash)
                 : publish_group(group, n, &o.place, &o.hash);
  if (r < 0) {
    if (errno != EMSGSIZE)
      errno = EAGAIN;
    return -1;
  }
  owed[(owed_at + owed_used++) & (owed_cap - 1)] = o;
  return 0;
}

static uint64_t hash_of(view_s channel) {
  return ring_hash(ring, channel);
}

static uint64_t watch(uint64_t hash, engine_ref_s *ref) {
  chanref_s *r = (chanref_s *)(void *)ref;
  ring_subscribe(ring, hash, r);
  ring_marks_s marks;
  ring_marks(ring, &marks); /* what comes meanwhile is not waited for */
  while (ring_last_id(ring) < marks.stable_id &&
         take(READ_BYTES, READ_RECORDS) > 0)
    ;
  uint64_t last = ring_last_id(ring);
  return last > born ? last : born;
}

static void unwatch(uint64_t hash, engine_ref_s *ref) {
  (void)hash;
  ring_unsubscribe(ring, (chanref_s *)(void *)ref);
}

static bool is_newer(uint64_t hash, uint64_t id) {
  uint64_t last, before;
  return chantable_last(ring_channels(ring), hash, &last, &before) < 0 ||
         last > id;
}

static uint64_t now(void) {
  return ring_clock(ring);
}

static const engine_s local = {.publish = publish,
                               .hash = hash_of,
                               .watch = watch,
                               .unwatch = unwatch,
                               .is_newer = is_newer,
                               .now = now};

const engine_s *engine_local_start(ring_s *r, unsigned slot, uint64_t birth) {
  ring = r;
  born = birth;
  wake_fd = ring_join(ring, slot);
  if (wake_fd < 0)
    return NULL;
  facil_engine_s hooks = {.turn = turn,
                          .may_sleep = may_sleep,
                          .woke = woke,
                          .is_busy = is_busy,
                          .wake_fd = wake_fd};
  return facil_set_engine(&hooks) < 0 ? NULL : &local;
}
