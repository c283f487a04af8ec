/* engine_local.c - ties the ring and the store to the loop and the registry.
 *
 * Each turn: commit what is pending, then take the ring's records up to
 * `stable`: what was kept goes to the registry, and whoever published a record
 * of this worker gets its answer. In durable mode a thread commits, so that no
 * loop waits for a disk. Invariant: answers are given in the order of the ring,
 * each once, and none before its record is stable; after a lap too. */
#include "engine_local.h"
#include <errno.h>
#include <facil/facil.h>
#include <facil/log.h>
#include <facil/pubsub.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (1u << 20) /* of records, in a turn */
#define READ_RECORDS 1024u
#define TICK_MS 1000u /* how often it is looked whether something has ended */
#define RETRY_MS 100u /* after a commit that failed */

_Static_assert(sizeof(engine_ref_s) == sizeof(chanref_s), "one is the other");

/* Own records that wait for their verdict, oldest first. */
typedef struct {
  ring_place_s place;
  uint64_t hash;
  size_t index; /* in its group */
  void (*done)(void *arg, const published_s *result);
  void *arg;
} owed_s;

static engine_local_s parts;
static ring_s *ring;
static store_s *store;
static owed_s *owed; /* a ring of its own; cap is a power of two */
static size_t owed_at, owed_used, owed_cap;
static bool must_stay_awake; /* the last commit left something */
static uint64_t retry_ms;    /* when a commit that failed is tried again */
static uint64_t logged_ms;

/* The commit thread of durable mode. */
static struct {
  pthread_t thread;
  sem_t kick;
  bool runs;
  atomic_bool ends;
} committer;

/* ---- answers ------------------------------------------------------------- */

static owed_s *owed_first(void) {
  return &owed[owed_at & (owed_cap - 1)];
}

static int owed_room(size_t n) {
  if (n <= owed_cap - owed_used)
    return 0;
  size_t cap = owed_cap ? owed_cap * 2 : 64;
  while (cap - owed_used < n)
    cap *= 2;
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
      .id = verdict->verdict == RING_DUPLICATE ? verdict->other : o.place.id,
      .index = o.index};
  if (result.status == 201)
    result.subscribers = (uint32_t)ring_subscribers(ring, o.hash, NULL);
  o.done(o.arg, &result);
}

/* ---- records --------------------------------------------------------------
 */

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
  if (rec->verdict.verdict == RING_KEPT && rec->op == STORE_MESSAGE)
    deliver(rec);
  if (rec->is_own && owed_used && owed_first()->place.position == rec->position)
    answer_first(&rec->verdict);
}

/* Overtaken: what was not delivered is in the store or a gap, and own records
 * are answered by what can still be told of them. */
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

/* ---- committing -------------------------------------------------------------
 */

static void log_failure(const char *what) {
  if (log_seldom(&logged_ms))
    log_line(LOG_ERROR, "commit", "mode=%s error=%d", what, errno);
}

/* Memory mode: in the turn; it never waits. */
static void commit_here(void) {
  if (retry_ms && facil_now_ms() < retry_ms)
    return;
  int r = ring_commit(ring, store_ring(store));
  must_stay_awake = r > 0;
  retry_ms = 0;
  if (r < 0) {
    log_failure("memory");
    retry_ms = facil_now_ms() + RETRY_MS;
  }
}

/* Durable mode: this thread waits for the store lock and the disk. */
static void *commit_thread(void *arg) {
  (void)arg;
  struct timespec pause = {0, RETRY_MS * 1000000};
  while (!atomic_load(&committer.ends)) {
    while (sem_wait(&committer.kick) < 0)
      ;
    int r;
    while ((r = ring_commit_wait(ring, store_ring(store))) > 0)
      ;
    if (r < 0) {
      log_failure("durable");
      nanosleep(&pause, NULL);
      sem_post(&committer.kick);
    }
  }
  return NULL;
}

static int committer_start(void) {
  if (!parts.is_durable)
    return 0;
  if (sem_init(&committer.kick, 0, 0) < 0)
    return -1;
  atomic_store(&committer.ends, false);
  errno = pthread_create(&committer.thread, NULL, commit_thread, NULL);
  committer.runs = errno == 0;
  return committer.runs ? 0 : -1;
}

static void committer_stop(void) {
  if (!committer.runs)
    return;
  atomic_store(&committer.ends, true);
  sem_post(&committer.kick);
  pthread_join(committer.thread, NULL);
  sem_destroy(&committer.kick);
  committer.runs = false;
}

/* Something has ended by age, or ids need a lease, and nothing is published
 * that would bring a commit about. */
static void tick(void *arg) {
  (void)arg;
  ring_place_s place;
  ring_message_s nothing = {.op = STORE_TICK, .flags = RING_STORE};
  if (store_is_due(store) && ring_append(ring, &nothing, 1, &place) < 0)
    log_line(LOG_DEBUG, "tick", "error=%d", errno); /* the next one will do */
}

/* ---- the loop's turns
 * --------------------------------------------------------- */

static bool turn(void *arg) {
  (void)arg;
  ring_turn(ring);
  pubsub_turn();
  if (!parts.is_durable)
    commit_here();
  else if (ring_commit_due(ring))
    sem_post(&committer.kick);
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

/* ---- publishing
 * ------------------------------------------------------------------ */

static void to_ring(const message_s *m, ring_message_s *r) {
  const rule_s *rule = rules_find(parts.rules, m->channel);
  *r = (ring_message_s){
      .hash = ring_hash(ring, m->channel),
      .connection = (uint64_t)m->origin,
      .ttl = m->ttl_s,
      .kind = (uint8_t)m->kind,
      .op = STORE_MESSAGE,
      .flags = store_concerns(store, rule, m->key.len > 0) ? RING_STORE : 0,
      .channel = m->channel,
      .type = m->type,
      .event = m->event,
      .key = m->key,
      .body = m->data};
}

/* Append `n` records and owe their answers. */
static int append(const ring_message_s *r, size_t n, ring_place_s *places,
                  void (*done)(void *arg, const published_s *result),
                  void *arg) {
  if (owed_room(n) < 0) { /* an answer that cannot be kept is never promised */
    errno = EAGAIN;
    return -1;
  }
  if (ring_append(ring, r, n, places) < 0) {
    if (errno != EMSGSIZE)
      errno = EAGAIN;
    return -1;
  }
  for (size_t i = 0; i < n; i++)
    owed[(owed_at + owed_used++) & (owed_cap - 1)] =
        (owed_s){places[i], r[i].hash, i, done, arg};
  return 0;
}

static int publish_group(const message_s *group, size_t n,
                         void (*done)(void *arg, const published_s *result),
                         void *arg) {
  ring_message_s *r = calloc(n, sizeof *r);
  ring_place_s *places = calloc(n, sizeof *places);
  int status = -1, saved = EAGAIN;
  if (r && places) {
    for (size_t i = 0; i < n; i++)
      to_ring(&group[i], &r[i]);
    status = append(r, n, places, done, arg);
    saved = errno;
  }
  free(r);
  free(places);
  errno = saved;
  return status;
}

static int publish(const message_s *group, size_t n,
                   void (*done)(void *arg, const published_s *result),
                   void *arg) {
  if (n != 1)
    return publish_group(group, n, done, arg);
  ring_message_s r;
  ring_place_s place;
  to_ring(group, &r);
  return append(&r, 1, &place, done, arg);
}

static size_t group_max(void) {
  return ring_group_max(ring);
}

static int drop(view_s channel,
                void (*done)(void *arg, const published_s *result), void *arg) {
  ring_place_s place;
  ring_message_s r = {.hash = ring_hash(ring, channel),
                      .op = STORE_DROP,
                      .flags = RING_STORE,
                      .channel = channel};
  return append(&r, 1, &place, done, arg);
}

/* ---- subscribing
 * -------------------------------------------------------------------- */

static uint64_t hash_of(view_s channel) {
  return ring_hash(ring, channel);
}

/* Where a subscriber joins: the id up to which this worker has delivered. */
static uint64_t delivered(void) {
  uint64_t last = ring_last_id(ring);
  return last > parts.birth ? last : parts.birth;
}

/* All that is stable now, in as many turns' worth as it is; what comes
 * meanwhile is not waited for. */
static uint64_t drain(void) {
  ring_marks_s marks;
  ring_marks(ring, &marks);
  while (ring_last_id(ring) < marks.stable_id &&
         take(READ_BYTES, READ_RECORDS) > 0)
    ;
  return delivered();
}

static uint64_t watch(uint64_t hash, engine_ref_s *ref) {
  ring_subscribe(ring, hash, (chanref_s *)(void *)ref);
  return drain();
}

static void unwatch(uint64_t hash, engine_ref_s *ref) {
  (void)hash;
  ring_unsubscribe(ring, (chanref_s *)(void *)ref);
}

static uint64_t watch_all(void) {
  ring_watch_all(ring, 1);
  return drain();
}

static void unwatch_all(void) {
  ring_watch_all(ring, -1);
}

static bool is_newer(uint64_t hash, uint64_t id) {
  uint64_t last, before;
  return chantable_last(ring_channels(ring), hash, &last, &before) < 0 ||
         last > id;
}

static uint64_t now(void) {
  return ring_clock(ring);
}

/* ---- reading
 * ---------------------------------------------------------------------------
 */

static bool keeps(view_s channel) {
  if (memchr(channel.data, '*', channel.len))
    return rules_keep_all(parts.rules, channel);
  return rules_find(parts.rules, channel)->count > 0;
}

typedef struct {
  engine_each_f each;
  void *arg;
} each_s;

static bool give(void *arg, const stored_s *s) {
  each_s *e = arg;
  message_s m = {.channel = s->channel,
                 .type = s->type,
                 .event = s->event,
                 .data = s->body,
                 .kind = (message_kind_e)s->kind,
                 .id = s->id};
  return e->each(e->arg, &m);
}

/* A cursor from which nothing can be read: beyond the clock, it is of a broker
 * whose clock was ahead; and where nothing is kept, whatever came after it and
 * before now may be missing. True: *out is the answer. */
static bool is_beyond(uint64_t since, bool is_kept, engine_read_s *out) {
  uint64_t end = delivered();
  bool is_ahead = since > end && since > ring_clock(ring);
  if (!is_ahead && is_kept)
    return false;
  *out = (engine_read_s){.cursor = end};
  if (is_ahead || since < end) {
    out->gap_from = is_ahead ? 1 : since + 1;
    out->gap_to = end;
  } else {
    out->cursor = since;
  }
  return true;
}

static int finish(int r, const store_result_s *got, engine_read_s *out) {
  *out = (engine_read_s){.gap_from = got->gap_from,
                         .gap_to = got->gap_to,
                         .cursor = got->cursor,
                         .has_more = got->has_more};
  return r;
}

static int read_channel(view_s channel, uint64_t since, engine_limit_s limit,
                        engine_each_f each, void *arg, engine_read_s *out) {
  if (is_beyond(since, keeps(channel), out))
    return 0;
  each_s e = {each, arg};
  store_result_s got = {.cursor = since};
  int r =
      store_read(store, channel, since, delivered(),
                 (store_limit_s){limit.messages, limit.bytes}, give, &e, &got);
  return finish(r, &got, out);
}

static int read_all(view_s pattern, uint64_t since, engine_limit_s limit,
                    engine_each_f each, void *arg, engine_read_s *out) {
  if (is_beyond(since, keeps(pattern), out))
    return 0;
  each_s e = {each, arg};
  store_result_s got = {.cursor = since};
  int r = store_read_all(store, since, delivered(),
                         (store_limit_s){limit.messages, limit.bytes}, give, &e,
                         &got);
  return finish(r, &got, out);
}

static int last(view_s channel, size_t n, uint64_t *since) {
  return store_last(store, channel, n, delivered(), since);
}

static int last_all(size_t n, engine_each_f is_wanted, void *arg,
                    uint64_t *since) {
  each_s e = {is_wanted, arg};
  return store_last_all(store, n, delivered(), give, &e, since);
}

static void describe(view_s channel, const store_info_s *s,
                     engine_info_s *out) {
  const rule_s *rule = rules_find(parts.rules, channel);
  *out = (engine_info_s){.count = s->count,
                         .bytes = s->bytes,
                         .first = s->first,
                         .last = s->last,
                         .trim = s->trim,
                         .subscribers = (uint32_t)ring_subscribers(
                             ring, ring_hash(ring, channel), NULL),
                         .history_count = rule->count,
                         .history_bytes = rule->bytes,
                         .history_age_ms = rule->age_us / 1000};
  if (!s->first) /* what is still there has ended */
    out->count = out->bytes = 0;
  out->exists = s->exists || out->subscribers;
}

static int info(view_s channel, engine_info_s *out) {
  store_info_s s;
  if (store_channel(store, channel, &s) < 0)
    return -1;
  describe(channel, &s, out);
  return 0;
}

typedef struct {
  bool (*each)(void *arg, view_s channel, const engine_info_s *info);
  void *arg;
} list_each_s;

static bool give_channel(void *arg, const store_info_s *s) {
  list_each_s *e = arg;
  engine_info_s i;
  describe(s->channel, s, &i);
  return e->each(e->arg, s->channel, &i);
}

static int list(view_s prefix, view_s after, size_t limit,
                bool (*each)(void *arg, view_s channel,
                             const engine_info_s *info),
                void *arg) {
  list_each_s e = {each, arg};
  return store_list(store, prefix, after, limit, give_channel, &e);
}

static const engine_s local = {.publish = publish,
                               .group_max = group_max,
                               .drop = drop,
                               .hash = hash_of,
                               .watch = watch,
                               .unwatch = unwatch,
                               .watch_all = watch_all,
                               .unwatch_all = unwatch_all,
                               .is_newer = is_newer,
                               .delivered = delivered,
                               .now = now,
                               .keeps = keeps,
                               .read = read_channel,
                               .read_all = read_all,
                               .last = last,
                               .last_all = last_all,
                               .info = info,
                               .list = list};

/* ---- the beginning and the end
 * ------------------------------------------------------------ */

static uint64_t clock_of(void *arg) {
  return ring_clock(arg);
}

static uint64_t low_id_of(void *arg) {
  ring_marks_s marks;
  ring_marks(arg, &marks);
  return marks.low_id;
}

const engine_s *engine_local_start(const engine_local_s *p, unsigned slot) {
  parts = *p;
  ring = parts.ring;
  int wake_fd = ring_join(ring, slot);
  if (wake_fd < 0)
    return NULL;
  store_setup_s setup = {
      .slot = slot, .clock = clock_of, .low_id = low_id_of, .arg = ring};
  store = store_open(parts.store, &setup);
  if (!store || committer_start() < 0)
    return NULL;
  facil_engine_s hooks = {.turn = turn,
                          .may_sleep = may_sleep,
                          .woke = woke,
                          .is_busy = is_busy,
                          .wake_fd = wake_fd};
  if (facil_set_engine(&hooks) < 0 ||
      facil_run_every(TICK_MS, 0, tick, NULL, NULL) < 0)
    return NULL;
  return &local;
}

void engine_local_stop(void) {
  committer_stop();
  store_close(store);
  store = NULL;
}
