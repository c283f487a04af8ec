/* ring_test.c - the ring with real processes: order, laps, deaths, stops,
 * sleep.
 *
 * Kernels of core.md's tests 33 to 36 and of its invariants I5 and I11. */
#include "ring_support.h"
#include <criterion/criterion.h>

static const ring_config_s small = {
    .size = 16 * 1024, .message_max = 1024, .workers = 4, .channels = 1024};

static ring_s *make(const ring_config_s *c) {
  ring_s *r = ring_new(c);
  cr_assert_not_null(r);
  return r;
}

static ring_s *make_joined(const ring_config_s *c, unsigned slot, int *fd) {
  ring_s *r = make(c);
  int f = ring_join(r, slot);
  cr_assert_geq(f, 0);
  if (fd)
    *fd = f;
  return r;
}

static bool is_readable(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 0) == 1;
}

static void on_nothing(void *arg, const ring_record_s *rec) {
  (void)arg;
  (void)rec;
}

static int drain(ring_s *r, void (*f)(void *, const ring_record_s *),
                 void *arg) {
  return ring_read(r, SIZE_MAX, SIZE_MAX, f, arg);
}

/* --- Making --- */

Test(ring, a_ring_below_sixteen_messages_is_refused) {
  ring_config_s c = small;
  c.message_max = 1025;
  cr_assert_null(ring_new(&c));
  cr_assert_eq(errno, EINVAL);
  c = small;
  c.size += 8; /* not of whole lines */
  cr_assert_null(ring_new(&c));
  cr_assert_eq(errno, EINVAL);
  c = small;
  c.workers = 0;
  cr_assert_null(ring_new(&c));
  cr_assert_eq(errno, EINVAL);
}

Test(ring, a_slot_is_taken_once_until_its_worker_is_dead) {
  ring_s *r = make_joined(&small, 1, NULL), *other = ring_share(r);
  cr_assert_eq(ring_join(other, 1), -1);
  cr_assert_eq(errno, EBUSY);
  cr_assert_eq(ring_join(other, 5), -1);
  cr_assert_eq(errno, EINVAL);
  ring_mark_dead(r, 1);
  cr_assert_geq(ring_join(other, 1), 0);
  ring_free(other);
  ring_free(r);
}

/* --- One message --- */

typedef struct {
  ring_record_s rec;
  char bytes[4096];
  int count;
} last_s;

static view_s keep(last_s *l, size_t *at, view_s v) {
  memcpy(l->bytes + *at, v.data, v.len);
  *at += v.len;
  return view_of(l->bytes + *at - v.len, v.len);
}

static void on_last(void *arg, const ring_record_s *rec) {
  last_s *l = (last_s *)arg;
  size_t at = 0;
  l->count++;
  l->rec = *rec;
  l->rec.channel = keep(l, &at, rec->channel);
  l->rec.type = keep(l, &at, rec->type);
  l->rec.event = keep(l, &at, rec->event);
  l->rec.key = keep(l, &at, rec->key);
  l->rec.body = keep(l, &at, rec->body);
}

Test(ring, a_message_comes_out_as_it_went_in) {
  ring_s *r = make_joined(&small, 2, NULL), *other = ring_share(r);
  cr_assert_geq(ring_join(other, 0), 0);
  ring_message_s m = {.hash = 7,
                      .connection = 1ull << 60 | 5,
                      .ttl = 3600,
                      .kind = 2,
                      .op = 9,
                      .flags = 0x8000,
                      .channel = VIEW_LIT("news:de"),
                      .type = VIEW_LIT("text/plain; charset=utf-8"),
                      .event = VIEW_LIT("e"),
                      .key = VIEW_LIT("0123456789abcdef"),
                      .body = VIEW_LIT("\0hello\0")};
  ring_place_s place;
  last_s l = {.count = 0}, o = {.count = 0};
  cr_assert_eq(ring_append(r, &m, 1, &place), 0);
  cr_assert_eq(drain(r, on_last, &l), 0, "pending is not read");
  cr_assert_eq(ring_commit(r, NULL), 0);
  cr_assert_eq(drain(r, on_last, &l), 1);
  cr_assert_eq(drain(other, on_last, &o), 1);
  cr_assert_eq(l.rec.id, place.id);
  cr_assert_eq(l.rec.position, place.position);
  cr_assert(l.rec.is_own);
  cr_assert(!o.rec.is_own);
  cr_assert_eq(o.rec.verdict.verdict, RING_KEPT);
  cr_assert_eq(o.rec.hash, 7);
  cr_assert_eq(o.rec.connection, m.connection);
  cr_assert_eq(o.rec.ttl, 3600);
  cr_assert_eq(o.rec.kind, 2);
  cr_assert_eq(o.rec.op, 9);
  cr_assert_eq(o.rec.flags, 0x8000);
  cr_assert(view_eq(o.rec.channel, m.channel));
  cr_assert(view_eq(o.rec.type, m.type));
  cr_assert(view_eq(o.rec.event, m.event));
  cr_assert(view_eq(o.rec.key, m.key));
  cr_assert(view_eq(o.rec.body, m.body));
  cr_assert_eq(ring_last_id(other), place.id);
  ring_free(other);
  ring_free(r);
}

Test(ring, what_is_too_long_is_refused_and_nothing_happens) {
  static char big[9000];
  ring_s *r = make_joined(&small, 0, NULL);
  ring_message_s m[8] = {{.body = view_of(big, 1025)}};
  ring_place_s places[8];
  cr_assert_eq(ring_append(r, m, 1, places), -1);
  cr_assert_eq(errno, EMSGSIZE);
  m[0] = (ring_message_s){.event = view_of(big, 8193)};
  cr_assert_eq(ring_append(r, m, 1, places), -1);
  cr_assert_eq(errno, EMSGSIZE);
  /* 4 x 1024 bytes are a quarter of the ring, and the headers are over it */
  for (int i = 0; i < 4; i++)
    m[i] = (ring_message_s){.body = view_of(big, 1024)};
  cr_assert_eq(ring_append(r, m, 4, places), -1);
  cr_assert_eq(errno, EMSGSIZE);
  m[3].body.len = 1024 - 4 * 64;
  cr_assert_eq(ring_append(r, m, 4, places), 0);
  ring_marks_s marks;
  ring_marks(r, &marks);
  cr_assert_eq(marks.head, 4096);
  cr_assert_eq(ring_group_max(r), 4096);
  ring_free(r);
}

static void on_ids(void *arg, const ring_record_s *rec) {
  uint64_t **next = (uint64_t **)arg;
  *(*next)++ = rec->id;
}

Test(ring, a_group_has_ids_in_a_row_and_ids_never_go_back) {
  ring_config_s c = small;
  c.floor = (1ull << 53) - 1000; /* far above the clock */
  ring_s *r = make_joined(&c, 0, NULL);
  cr_assert_eq(ring_last_id(r), c.floor);
  ring_message_s m[3] = {{.hash = 1}, {.hash = 2}, {.hash = 3}};
  ring_place_s p[3];
  cr_assert_eq(ring_append(r, m, 3, p), 0);
  cr_assert_eq(p[0].id, c.floor + 1);
  cr_assert_eq(p[2].id, c.floor + 3);
  cr_assert_eq(ring_append(r, m, 1, p), 0);
  cr_assert_eq(p[0].id, c.floor + 4);
  uint64_t ids[8], *next = ids;
  cr_assert_eq(ring_commit(r, NULL), 0);
  cr_assert_eq(drain(r, on_ids, &next), 4);
  for (uint64_t i = 0; i < 4; i++)
    cr_assert_eq(ids[i], c.floor + 1 + i);
  ring_free(r);
}

Test(ring, ids_are_microseconds_of_the_wall_clock) {
  ring_s *r = make_joined(&small, 0, NULL);
  ring_message_s m = {.hash = 1};
  ring_place_s p;
  struct timespec t;
  cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  clock_gettime(CLOCK_REALTIME, &t);
  uint64_t wall = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
  cr_assert_lt(wall - p.id + 100000, 10000000);
  cr_assert_lt(p.id, 1ull << 53);
  ring_free(r);
}

Test(ring, a_full_ring_says_so_until_a_commit) {
  static char body[1024];
  ring_s *r = make_joined(&small, 0, NULL);
  ring_message_s m = {.body = view_of(body, 1024 - 64)};
  ring_place_s p;
  for (int i = 0; i < 16; i++)
    cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  ring_marks_s marks;
  ring_marks(r, &marks);
  cr_assert_eq(marks.head - marks.stable, small.size, "to the last byte");
  m.body.len = 0;
  cr_assert_eq(ring_append(r, &m, 1, &p), -1);
  cr_assert_eq(errno, EAGAIN);
  cr_assert_eq(ring_commit(r, NULL), 0);
  cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  ring_free(r);
}

/* --- Wraps --- */

typedef struct {
  uint32_t next;
  uint64_t last_id;
  int faults;
} in_order_s;

static void on_in_order(void *arg, const ring_record_s *rec) {
  in_order_s *o = (in_order_s *)arg;
  o->faults += rec->ttl != o->next++ || rec->id <= o->last_id ||
               !record_is_whole(rec) || !view_eq(rec->channel, VIEW_LIT("w"));
  o->last_id = rec->id;
}

Test(ring, records_of_every_length_survive_every_place_of_the_wrap) {
  ring_config_s c = small;
  c.size = 16 * 1024 + 64; /* no power of two */
  ring_s *r = make_joined(&c, 0, NULL);
  char body[1024];
  in_order_s o = {0};
  ring_place_s p;
  for (uint32_t i = 0; i < 20000; i++) {
    ring_message_s m =
        message_of(r, VIEW_LIT("w"), 0, i, body, i * 7919u % 1025);
    cr_assert_eq(ring_append(r, &m, 1, &p), 0);
    if (i % 5 == 4) {
      cr_assert_eq(ring_commit(r, NULL), 0);
      cr_assert_eq(drain(r, on_in_order, &o), 5);
    }
  }
  cr_assert_eq(o.next, 20000);
  cr_assert_eq(o.faults, 0);
  ring_free(r);
}

Test(ring, a_record_longer_than_a_chunk_is_read_whole) {
  ring_config_s c = {
      .size = 4 << 20, .message_max = 256 << 10, .workers = 1, .channels = 64};
  ring_s *r = make_joined(&c, 0, NULL);
  char *body = malloc(256 << 10);
  cr_assert_not_null(body);
  in_order_s o = {0};
  ring_place_s p;
  for (uint32_t i = 0; i < 60; i++) {
    size_t len = i % 3 ? (256u << 10) - i : i;
    ring_message_s m = message_of(r, VIEW_LIT("w"), 0, i, body, len);
    cr_assert_eq(ring_append(r, &m, 1, &p), 0);
    cr_assert_eq(ring_commit(r, NULL), 0);
    if (i % 4 == 3)
      cr_assert_eq(drain(r, on_in_order, &o), 4);
  }
  cr_assert_eq(o.faults, 0);
  free(body);
  ring_free(r);
}

Test(ring, a_read_ends_at_its_limits_and_goes_on_from_there) {
  ring_s *r = make_joined(&small, 0, NULL);
  char body[64];
  in_order_s o = {0};
  ring_place_s p;
  for (uint32_t i = 0; i < 10; i++) {
    ring_message_s m = message_of(r, VIEW_LIT("w"), 0, i, body, 56);
    cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  }
  cr_assert_eq(ring_commit(r, NULL), 0);
  cr_assert_eq(ring_read(r, SIZE_MAX, 3, on_in_order, &o), 3);
  cr_assert_eq(ring_read(r, 1, SIZE_MAX, on_in_order, &o), 1);
  cr_assert_eq(ring_read(r, 2 * 128, SIZE_MAX, on_in_order, &o), 2);
  cr_assert_eq(drain(r, on_in_order, &o), 4);
  cr_assert_eq(drain(r, on_in_order, &o), 0);
  cr_assert_eq(o.faults, 0);
  ring_free(r);
}

/* --- Laps --- */

static ring_s *edge_reader;
static int edge_result, edge_errno, edge_seen;

static void on_edge(void *arg, const ring_record_s *rec) {
  (void)arg;
  edge_seen += record_is_whole(rec) ? 1 : 1000;
}

static void edge_hook(const char *point) {
  if (strcmp(point, "append: written"))
    return;
  ring_hook = NULL;
  edge_result = ring_read(edge_reader, SIZE_MAX, 1, on_edge, NULL);
  edge_errno = errno;
}

/* The reader's record is overwritten by an append that has not moved head. A
 * check against head instead of reserve shows the new bytes as the old record.
 */
Test(ring, a_record_under_an_unfinished_append_is_never_shown) {
  ring_s *r = make_joined(&small, 0, NULL);
  edge_reader = ring_share(r);
  cr_assert_geq(ring_join(edge_reader, 1), 0);
  char body[1024];
  ring_place_s p;
  for (uint32_t i = 0; i < 16; i++) {
    ring_message_s m = message_of(r, VIEW_LIT("w"), 0, i, body, 1024 - 72);
    cr_assert_eq(ring_append(r, &m, 1, &p), 0);
    cr_assert_eq(ring_commit(r, NULL), 0);
  }
  uint64_t from, to, before = p.id;
  ring_message_s m = message_of(r, VIEW_LIT("w"), 0, 99, body, 100);
  ring_hook = edge_hook;
  cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  cr_assert_eq(edge_result, -1);
  cr_assert_eq(edge_errno, EOVERFLOW);
  cr_assert_eq(edge_seen, 0);
  ring_lapped(edge_reader, &from, &to);
  cr_assert_lt(from, to);
  cr_assert_eq(to, before, "up to the last stable one");
  cr_assert_eq(ring_commit(r, NULL), 0);
  cr_assert_eq(ring_read(edge_reader, SIZE_MAX, 9, on_edge, NULL), 1);
  cr_assert_eq(edge_seen, 1);
  ring_free(edge_reader);
  ring_free(r);
}

Test(ring, one_exactly_a_ring_behind_is_not_lapped) {
  ring_s *r = make_joined(&small, 0, NULL), *o = ring_share(r);
  cr_assert_geq(ring_join(o, 1), 0);
  char body[1024];
  in_order_s seen = {0};
  ring_place_s p;
  for (uint32_t i = 0; i < 16; i++) {
    ring_message_s m = message_of(r, VIEW_LIT("w"), 0, i, body, 1024 - 72);
    cr_assert_eq(ring_append(r, &m, 1, &p), 0);
    cr_assert_eq(ring_commit(r, NULL), 0);
  }
  cr_assert_eq(drain(o, on_in_order, &seen), 16);
  cr_assert_eq(seen.faults, 0);
  ring_free(o);
  ring_free(r);
}

/* --- Many writers, many readers --- */

typedef struct {
  _Atomic uint32_t published[8], passed[8];
  _Atomic uint32_t flag;
  _Atomic uint64_t value;
  uint64_t digest[8];
  uint32_t each, laps[8];
  stored_s stored;
  const char *point;
  unsigned after;
} board_s;

typedef struct {
  board_s *board;
  unsigned slot;
  uint32_t next[8], count;
  uint64_t digest, last_id;
  int fault;
  bool may_miss;
} reader_s;

static void on_mixed(void *arg, const ring_record_s *rec) {
  reader_s *o = (reader_s *)arg;
  if (!record_is_whole(rec))
    o->fault = 3;
  if (rec->id <= o->last_id)
    o->fault = 4;
  if (rec->ttl < o->next[rec->kind] ||
      (!o->may_miss && rec->ttl > o->next[rec->kind]))
    o->fault = 5;
  o->last_id = rec->id;
  o->next[rec->kind] = rec->ttl + 1;
  o->digest = (o->digest ^ rec->id) * 1099511628211u + rec->kind;
  o->count++;
  atomic_fetch_add(&o->board->passed[o->slot], 1);
}

static int marks_fault(ring_s *r) {
  ring_marks_s m;
  ring_marks(r, &m); /* I11 */
  if (m.stable > m.head || m.head > m.reserve)
    return 6;
  return 0;
}

/* How far the slowest of four is behind what was published, in messages. */
static uint32_t lag_of(board_s *b) {
  uint32_t all = 0, least = UINT32_MAX;
  for (int i = 0; i < 4; i++) {
    all += atomic_load(&b->published[i]);
    uint32_t passed = atomic_load(&b->passed[i]);
    least = passed < least ? passed : least;
  }
  return all > least ? all - least : 0;
}

static int mixed_worker(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  reader_s o = {.board = b, .slot = slot};
  char body[1024];
  int fd = ring_join(r, slot);
  if (fd < 0)
    return 1;
  ring_watch_all(r, 1);
  atomic_fetch_add(&b->flag, 1);
  while (atomic_load(&b->flag) < 4)
    ;
  for (uint32_t seq = 0; o.count < 4 * b->each || seq < b->each;) {
    ring_turn(r);
    if (seq < b->each && lag_of(b) < 10) { /* 12 fit */
      size_t len = seq % 10 == 0 ? 1024 : seq * 31 % 300;
      ring_message_s m = message_of(r, VIEW_LIT("w"), slot, seq, body, len);
      ring_place_s p;
      if (ring_append(r, &m, 1, &p) == 0) {
        atomic_fetch_add(&b->published[slot], 1);
        seq++;
      }
    } else if (seq < b->each) {
      sched_yield();
    }
    if (ring_commit(r, NULL) < 0 || drain(r, on_mixed, &o) < 0)
      return 2;
    if (o.fault || (o.fault = marks_fault(r)))
      return o.fault;
    if (seq == b->each && o.count < 4 * b->each && !sleep_well(r, fd))
      return 7;
  }
  b->digest[slot] = o.digest;
  return 0;
}

Test(ring, four_workers_see_the_messages_of_all_whole_once_in_one_order,
     .timeout = 1000) {
  board_s *b = shared_memory(sizeof *b);
  ring_s *r = make(&small);
  pid_t pids[4];
  int bad = 0;
  b->each = soak(20000, 1000000);
  for (unsigned i = 0; i < 4; i++)
    pids[i] = spawn(mixed_worker, r, i, b);
  for (unsigned i = 0; i < 4; i++)
    bad |= reap(pids[i]);
  cr_assert_eq(bad, 0);
  for (unsigned i = 1; i < 4; i++)
    cr_assert_eq(b->digest[i], b->digest[0]);
  ring_free(r);
}

/* Nobody waits for anybody: readers are lapped all the time. */
static int racing_worker(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  reader_s o = {.board = b, .slot = slot, .may_miss = true};
  char body[1024];
  if (ring_join(r, slot) < 0)
    return 1;
  for (uint32_t seq = 0; seq < b->each; seq++) {
    size_t len = seq % 5 ? seq * 31 % 300 : 1024;
    ring_message_s m = message_of(r, VIEW_LIT("w"), slot, seq, body, len);
    ring_place_s p;
    if (slot < 2 && publish_s(r, NULL, &m, &p) < 0)
      return 2;
    if (slot >= 2 || seq % 64 == 0)
      while (drain(r, on_mixed, &o) < 0) {
        uint64_t from, to;
        ring_lapped(r, &from, &to);
        if (from != o.last_id && o.count && from < o.last_id)
          return 8;
        o.last_id = to;
        b->laps[slot]++;
      }
    if (o.fault || (o.fault = marks_fault(r)))
      return o.fault;
  }
  return 0;
}

Test(ring, readers_that_are_lapped_are_told_and_never_see_a_torn_record,
     .timeout = 1000) {
  board_s *b = shared_memory(sizeof *b);
  ring_s *r = make(&small);
  pid_t pids[4];
  int bad = 0;
  b->each = soak(100000, 5000000);
  for (unsigned i = 0; i < 4; i++)
    pids[i] = spawn(racing_worker, r, i, b);
  for (unsigned i = 0; i < 4; i++)
    bad |= reap(pids[i]);
  cr_assert_eq(bad, 0);
  cr_assert_gt(b->laps[0] + b->laps[1] + b->laps[2] + b->laps[3], 0);
  ring_free(r);
}

/* --- Deaths --- */

/* The points of an append and of a commit, in their order. */
static const char *points[] = {
    "lock: taken",     "append: locked", "append: reserved", "append: header",
    "append: written", "append: moved",  "lock: wiped",      "append: unlocked",
    "commit: locked",  "commit: begun",  "commit: decided",  "commit: stored",
    "commit: noted",   "commit: marked", "commit: stable",   "commit: unlocked",
    "commit: woke",    "read: copied"};
enum { POINTS = sizeof points / sizeof *points };

static void on_answer(void *arg, const ring_record_s *rec) {
  board_s *b = (board_s *)arg;
  if (rec->is_own && rec->verdict.verdict == RING_KEPT)
    atomic_store(&b->value, rec->id); /* the last one answered: 201 */
}

static int dying_worker(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  store_s store = {{&store_ops}, &b->stored, 0};
  char body[1024];
  if (ring_join(r, slot) < 0)
    return 1;
  trap_at(b->point, b->after, SIGKILL);
  for (uint32_t seq = 0; seq < 400; seq++) {
    ring_message_s m =
        message_of(r, VIEW_LIT("w"), slot, seq, body, seq * 37 % 1000);
    m.flags = seq % 3 ? RING_STORE : 0;
    ring_place_s p;
    ring_turn(r);
    if (ring_append(r, &m, 1, &p) == 0)
      atomic_store(&b->published[slot], seq + 1);
    if (seq % 2 &&
        (ring_commit(r, &store.super) < 0 || drain(r, on_answer, b) < 0))
      return 2;
  }
  return 0;
}

typedef struct {
  reader_s super;
  stored_s *stored;
  uint32_t from_dead;
  uint64_t dead_id; /* the last of the dead one's */
  bool has_end;
} witness_s;

static void on_witness(void *arg, const ring_record_s *rec) {
  witness_s *w = (witness_s *)arg;
  on_mixed(&w->super, rec);
  if (rec->verdict.verdict != RING_KEPT ||
      store_times(w->stored, rec->id) != (rec->flags & RING_STORE))
    w->super.fault = 9;
  w->has_end |= rec->op == 77;
  if (rec->kind == 1) {
    w->from_dead = rec->ttl + 1;
    w->dead_id = rec->id;
  }
}

/* Sleeps by the protocol until the record that ends it. */
static int sleeping_witness(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  store_s store = {{&store_ops}, &b->stored, 0};
  witness_s w = {{.board = b, .slot = slot}, .stored = &b->stored};
  int fd = ring_join(r, slot);
  if (fd < 0)
    return 1;
  ring_watch_all(r, 1);
  atomic_fetch_add(&b->flag, 1);
  while (!w.has_end) {
    ring_turn(r);
    if (ring_commit(r, &store.super) < 0 || drain(r, on_witness, &w) < 0)
      return 2;
    if (w.super.fault)
      return w.super.fault;
    if (!w.has_end && !sleep_well(r, fd))
      return 7;
  }
  atomic_store(&b->passed[7], w.from_dead);
  return 0;
}

/* Worker 1 dies at `point`; worker 2 sleeps; worker 0 comes later. */
static void die_at(const char *point, unsigned after) {
  board_s *b = shared_memory(sizeof *b);
  ring_config_s c = small;
  c.size = 1 << 20; /* nobody is lapped */
  ring_s *r = make(&c);
  b->point = point;
  b->after = after;
  b->stored.most = STORE_MAX;
  pid_t witness = spawn(sleeping_witness, r, 2, b);
  while (!atomic_load(&b->flag))
    pause_ms(1);
  pid_t dying = spawn(dying_worker, r, 1, b);
  cr_assert_eq(reap(dying), 1000 + SIGKILL, "%s", point);
  ring_mark_dead(r, 1);
  store_s store = {{&store_ops}, &b->stored, 0};
  char body[64];
  cr_assert_geq(ring_join(r, 0), 0);
  ring_message_s m = message_of(r, VIEW_LIT("w"), 0, 0, body, 64);
  ring_place_s p;
  m.op = 77;
  cr_assert_eq(publish_s(r, &store.super, &m, &p), 0, "%s", point);
  cr_assert_eq(reap(witness), 0, "%s", point);
  uint32_t published = atomic_load(&b->published[1]);
  uint32_t passed = atomic_load(&b->passed[7]);
  cr_assert(passed == published || passed == published + 1, "%s: of %u came %u",
            point, published, passed);
  cr_assert_geq(p.id, atomic_load(&b->value));
  cr_assert_eq(b->stored.torn, 0);
  ring_free(r);
  munmap(b, sizeof *b);
}

Test(ring, a_worker_killed_at_any_step_costs_nobody_a_message,
     .timeout = 1000) {
  for (unsigned i = 0; i < POINTS; i++)
    for (unsigned after = 0; after < soak(3, 40); after++)
      die_at(points[i], after * 3);
}

/* The dead one's records are committed though nobody publishes any more. */
Test(ring, what_a_dead_worker_left_pending_is_committed_by_a_sleeper) {
  board_s *b = shared_memory(sizeof *b);
  ring_s *r = make(&small);
  b->point = "append: unlocked";
  b->stored.most = STORE_MAX;
  int fd = -1;
  ring_s *sleeper = ring_share(r);
  fd = ring_join(sleeper, 0);
  cr_assert_eq(ring_commit(sleeper, NULL), 0);
  cr_assert(ring_may_sleep(sleeper));
  pid_t dying = spawn(dying_worker, r, 1, b);
  cr_assert_eq(reap(dying), 1000 + SIGKILL);
  cr_assert(!is_readable(fd));
  ring_mark_dead(r, 1);
  cr_assert(is_readable(fd));
  ring_woke(sleeper, true);
  cr_assert_eq(ring_commit(sleeper, NULL), 0);
  cr_assert_eq(drain(sleeper, on_nothing, NULL), 1);
  ring_free(sleeper);
  ring_free(r);
}

Test(ring, a_death_rings_also_those_who_seem_to_be_awake) {
  int fd;
  ring_s *r = make_joined(&small, 0, &fd);
  cr_assert(!is_readable(fd));
  ring_mark_dead(r, 1);
  cr_assert(is_readable(fd));
  ring_free(r);
}

Test(ring, a_successor_does_not_take_its_predecessors_records_for_its_own) {
  ring_s *r = make_joined(&small, 0, NULL);
  ring_message_s m = {.hash = 1};
  ring_place_s p;
  last_s l = {.count = 0};
  cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  ring_mark_dead(r, 0);
  ring_s *next = ring_share(r);
  cr_assert_geq(ring_join(next, 0), 0);
  cr_assert(!ring_may_sleep(next), "something may be pending");
  cr_assert_eq(ring_commit(next, NULL), 0);
  cr_assert_eq(drain(next, on_last, &l), 1);
  cr_assert_eq(l.rec.id, p.id);
  cr_assert(!l.rec.is_own);
  ring_free(next);
  ring_free(r);
}

static int half_writing_worker(ring_s *r, unsigned slot, void *arg) {
  static char body[1000];
  ring_message_s m = {.body = view_of(body, sizeof body)};
  ring_place_s p;
  if (ring_join(r, slot) < 0)
    return 1;
  trap_at((const char *)arg, 0, SIGKILL);
  if (ring_append(r, &m, 1, &p) < 0 || ring_commit(r, NULL) < 0)
    return 2;
  return 0;
}

Test(ring, reserve_never_goes_back_after_a_death) {
  ring_s *r = make_joined(&small, 0, NULL);
  ring_message_s m = {.hash = 1};
  ring_place_s p;
  ring_marks_s before, after;
  pid_t pid = spawn(half_writing_worker, r, 1, (void *)"append: written");
  cr_assert_eq(reap(pid), 1000 + SIGKILL);
  ring_mark_dead(r, 1);
  ring_marks(r, &before);
  cr_assert_eq(before.reserve - before.head, 1064);
  cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  ring_marks(r, &after);
  cr_assert_eq(after.head - before.head, 64);
  cr_assert_eq(after.reserve, before.reserve);
  ring_free(r);
}

Test(ring, a_successor_is_not_blamed_for_a_lock_that_the_dead_one_held) {
  static const char *held[] = {"append: written", "commit: decided"};
  for (int i = 0; i < 2; i++) {
    ring_s *r = make(&small), *next = ring_share(r);
    pid_t pid = spawn(half_writing_worker, r, 1, (void *)(uintptr_t)held[i]);
    cr_assert_eq(reap(pid), 1000 + SIGKILL);
    ring_mark_dead(r, 1);
    cr_assert_geq(ring_join(next, 1), 0);
    int slot = -1;
    for (uint64_t after = 2000; after < 6000; after += 1000)
      cr_assert_eq(ring_lock_holder(r, now_ms() + after, 1000, &slot), 0);
    ring_free(next);
    ring_free(r);
  }
}

/* --- Stops --- */

static int stopping_worker(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  chanref_s ref = {0};
  ring_message_s m = {.hash = 1};
  ring_place_s p;
  if (ring_join(r, slot) < 0)
    return 1;
  trap_at(b->point, b->after, SIGSTOP);
  ring_subscribe(r, 99, &ref);
  if (ring_append(r, &m, 1, &p) < 0 || ring_commit(r, NULL) < 0)
    return 2;
  return 0;
}

static int idle_stopped_worker(ring_s *r, unsigned slot, void *arg) {
  (void)arg;
  if (ring_join(r, slot) < 0)
    return 1;
  raise(SIGSTOP);
  return 0;
}

/* Which slot the watchdog names, after how long; -1: none in `most_ms`. */
static int watch(ring_s *r, uint64_t most_ms, uint64_t *took) {
  uint64_t from = now_ms();
  int slot = -1;
  while (now_ms() - from < most_ms) {
    if (ring_lock_holder(r, now_ms(), 1000, &slot)) {
      *took = now_ms() - from;
      return slot;
    }
    pause_ms(50);
  }
  return -1;
}

typedef struct {
  ring_s *master, *me;
  pid_t holder, idle;
  board_s *board;
} stop_s;

static stop_s stop_at(const char *point, unsigned after) {
  stop_s s = {.board = shared_memory(sizeof(board_s))};
  s.master = make(&small);
  s.me = ring_share(s.master);
  cr_assert_geq(ring_join(s.me, 0), 0);
  s.board->point = point;
  s.board->after = after;
  s.idle = spawn(idle_stopped_worker, s.master, 3, NULL);
  s.holder = spawn(stopping_worker, s.master, 1, s.board);
  cr_assert_eq(wait_stopped(s.idle), 0);
  cr_assert_eq(wait_stopped(s.holder), 0, "%s", point);
  return s;
}

/* Named after a second, it and no other; then everything goes on. */
static void stop_end(stop_s *s, const char *point) {
  uint64_t took = 0;
  cr_assert_eq(watch(s->master, 5000, &took), 1, "%s", point);
  cr_assert_lt(took, 2000);
  kill(s->holder, SIGKILL);
  cr_assert_eq(reap(s->holder), 1000 + SIGKILL);
  ring_mark_dead(s->master, 1);
  cr_assert_eq(watch(s->master, 100, &took), -1, "%s", point);
  ring_turn(s->me);
  ring_message_s m = {.hash = 5};
  ring_place_s p;
  chanref_s ref = {0};
  ring_subscribe(s->me, 5, &ref);
  cr_assert_eq(ref.own, 0);
  cr_assert_eq(ring_append(s->me, &m, 1, &p), 0, "%s", point);
  cr_assert_eq(ring_commit(s->me, NULL), 0);
  cr_assert_geq(drain(s->me, on_nothing, NULL), 1, "%s", point);
  kill(s->idle, SIGKILL);
  reap(s->idle);
  ring_free(s->me);
  ring_free(s->master);
}

Test(ring, a_stopped_holder_of_the_ring_lock_costs_100_ms_once_and_is_named,
     .timeout = 60) {
  stop_s s = stop_at("append: locked", 0);
  ring_message_s m = {.hash = 5};
  ring_place_s p;
  for (int turn = 0; turn < 3; turn++) {
    ring_turn(s.me);
    for (int i = 0; i < 3; i++) {
      uint64_t from = now_ms();
      cr_assert_eq(ring_append(s.me, &m, 1, &p), -1);
      cr_assert_eq(errno, ETIMEDOUT);
      uint64_t took = now_ms() - from;
      if (turn || i)
        cr_assert_lt(took, 50, "only tried");
      else
        cr_assert(took >= 99 && took < 1000);
    }
  }
  stop_end(&s, "append: locked");
}

Test(ring, a_stopped_holder_of_the_store_lock_delays_no_loop_and_is_named,
     .timeout = 60) {
  stop_s s = stop_at("commit: decided", 0);
  ring_message_s m = {.hash = 5};
  ring_place_s p;
  cr_assert_eq(ring_append(s.me, &m, 1, &p), 0);
  uint64_t from = now_ms();
  cr_assert_eq(ring_commit(s.me, NULL), 0);
  cr_assert_lt(now_ms() - from, 50);
  cr_assert_eq(drain(s.me, on_nothing, NULL), 0);
  stop_end(&s, "commit: decided");
}

Test(ring, a_stopped_holder_of_the_table_lock_is_named, .timeout = 60) {
  stop_s s = stop_at("add: locked", 0);
  chanref_s ref = {0};
  ring_subscribe(s.me, 6, &ref);
  cr_assert_eq(ref.own, 1, "counted by the worker meanwhile");
  ring_unsubscribe(s.me, &ref);
  cr_assert_eq(ref.own, 0);
  stop_end(&s, "add: locked");
}

/* In these instants no mark says who holds the lock. The locks in order of
 * taking: table, ring, store. */
Test(ring, a_holder_stopped_before_it_wrote_its_mark_is_named, .timeout = 60) {
  for (unsigned lock = 0; lock < 3; lock++) {
    stop_s s = stop_at("lock: taken", lock);
    stop_end(&s, "lock: taken");
    s = stop_at("lock: wiped", lock);
    stop_end(&s, "lock: wiped");
  }
}

Test(ring, in_durable_mode_a_slow_store_is_nobodys_fault, .timeout = 60) {
  ring_config_s c = small;
  c.is_durable = true;
  board_s *b = shared_memory(sizeof *b);
  ring_s *r = make(&c);
  uint64_t took;
  b->point = "commit: decided";
  pid_t pid = spawn(stopping_worker, r, 1, b);
  cr_assert_eq(wait_stopped(pid), 0);
  cr_assert_eq(watch(r, 1500, &took), -1);
  kill(pid, SIGKILL);
  reap(pid);
  ring_free(r);
}

/* --- Sleep --- */

typedef struct {
  uint32_t count, kind;
  board_s *board;
} counted_s;

static void on_counted(void *arg, const ring_record_s *rec) {
  counted_s *c = (counted_s *)arg;
  c->count += rec->kind == c->kind;
}

/* Two that answer each other, asleep in between; core.md test 35. */
static int answering_worker(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  counted_s seen = {.kind = 1 - slot};
  unsigned rnd = slot + 1;
  chanref_s ref = {0};
  int fd = ring_join(r, slot);
  if (fd < 0)
    return 1;
  ring_subscribe(r, 100 + slot, &ref);
  atomic_fetch_add(&b->flag, 1);
  while (atomic_load(&b->flag) < 2)
    ;
  for (uint32_t sent = 0; seen.count < b->each || sent < b->each;) {
    uint32_t due = seen.count + (slot == 0); /* slot 0 begins */
    ring_turn(r);
    if (sent < b->each && sent < due) {
      ring_message_s m = {.hash = 100 + 1 - slot, .kind = (uint8_t)slot};
      ring_place_s p;
      if (ring_append(r, &m, 1, &p) == 0)
        sent++;
    }
    if (ring_commit(r, NULL) < 0 || drain(r, on_counted, &seen) < 0)
      return 2;
    rnd = rnd * 1664525u + 1013904223u;
    for (volatile unsigned i = rnd >> 24; i; i--)
      ;
    due = seen.count + (slot == 0);
    if (seen.count < b->each && sent >= due && !sleep_well(r, fd))
      return 7;
  }
  return 0;
}

Test(ring, no_wake_up_is_lost_in_100000_answers, .timeout = 1000) {
  board_s *b = shared_memory(sizeof *b);
  ring_s *r = make(&small);
  b->each = soak(50000, 2000000); /* each way */
  pid_t one = spawn(answering_worker, r, 0, b);
  pid_t two = spawn(answering_worker, r, 1, b);
  cr_assert_eq(reap(one), 0);
  cr_assert_eq(reap(two), 0);
  ring_free(r);
}

typedef struct {
  ring_s *master, *publisher, *sleeper;
  int fd;
} pair_s;

static pair_s pair_make(void) {
  pair_s p = {.master = make(&small)};
  p.publisher = ring_share(p.master);
  p.sleeper = ring_share(p.master);
  cr_assert_geq(ring_join(p.publisher, 0), 0);
  p.fd = ring_join(p.sleeper, 1);
  cr_assert_eq(ring_commit(p.sleeper, NULL), 0);
  return p;
}

static void pair_free(pair_s *p) {
  ring_free(p->sleeper);
  ring_free(p->publisher);
  ring_free(p->master);
}

static void pair_publish(pair_s *p, uint64_t hash, size_t len) {
  static char body[1024];
  ring_message_s m = {.hash = hash, .body = view_of(body, len)};
  ring_place_s place;
  cr_assert_eq(publish_s(p->publisher, NULL, &m, &place), 0);
}

Test(ring, a_sleeper_is_rung_for_its_channels_only) {
  pair_s p = pair_make();
  chanref_s ref = {0};
  ring_subscribe(p.sleeper, 1, &ref);
  cr_assert(ring_may_sleep(p.sleeper));
  pair_publish(&p, 2, 0);
  cr_assert(!is_readable(p.fd));
  pair_publish(&p, 1, 0);
  cr_assert(is_readable(p.fd));
  ring_woke(p.sleeper, true);
  cr_assert(!is_readable(p.fd));
  cr_assert(!ring_may_sleep(p.sleeper), "two to read");
  cr_assert_eq(drain(p.sleeper, on_nothing, NULL), 2);
  cr_assert(ring_may_sleep(p.sleeper));
  ring_unsubscribe(p.sleeper, &ref);
  pair_publish(&p, 1, 0);
  cr_assert(!is_readable(p.fd));
  pair_free(&p);
}

Test(ring, a_sleeper_with_a_pattern_is_rung_for_everything) {
  pair_s p = pair_make();
  ring_watch_all(p.sleeper, 1);
  cr_assert(ring_may_sleep(p.sleeper));
  pair_publish(&p, 2, 0);
  cr_assert(is_readable(p.fd));
  ring_woke(p.sleeper, true);
  cr_assert_eq(drain(p.sleeper, on_nothing, NULL), 1);
  ring_watch_all(p.sleeper, -1);
  cr_assert(ring_may_sleep(p.sleeper));
  pair_publish(&p, 2, 0);
  cr_assert(!is_readable(p.fd));
  pair_free(&p);
}

Test(ring, a_sleeper_half_a_ring_behind_is_rung) {
  pair_s p = pair_make();
  cr_assert(ring_may_sleep(p.sleeper));
  for (int i = 0; i < 7; i++)
    pair_publish(&p, 2, 1024 - 64);
  cr_assert(!is_readable(p.fd));
  pair_publish(&p, 2, 1024 - 64);
  cr_assert(is_readable(p.fd));
  pair_free(&p);
}

Test(ring, the_origin_is_rung_when_another_commits_its_record) {
  pair_s p = pair_make();
  ring_message_s m = {.hash = 2};
  ring_place_s place;
  ring_verdict_s v;
  cr_assert_eq(ring_append(p.sleeper, &m, 1, &place), 0);
  cr_assert(!ring_may_sleep(p.sleeper), "it has not committed yet");
  cr_assert_eq(ring_verdict(p.sleeper, place, &v), -1);
  cr_assert_eq(errno, EAGAIN);
  /* somebody else holds the store lock and will look again */
  cr_assert(ring_commit_due(p.sleeper));
  cr_assert(ring_may_sleep(p.sleeper));
  cr_assert_eq(ring_commit(p.publisher, NULL), 0);
  cr_assert(is_readable(p.fd));
  cr_assert_eq(ring_verdict(p.sleeper, place, &v), 0);
  cr_assert_eq(v.verdict, RING_KEPT);
  pair_free(&p);
}

static ring_s *late;
static bool late_sleeps;

static void late_hook(const char *point) {
  static chanref_s ref;
  if (strcmp(point, "commit: marked"))
    return;
  ring_subscribe(late, 2, &ref);
  late_sleeps = drain(late, on_nothing, NULL) == 0 && ring_may_sleep(late);
}

/* Its channel got an entry after the batch was looked through. */
Test(ring, who_subscribes_and_sleeps_just_before_stable_moves_is_rung) {
  pair_s p = pair_make();
  late = p.sleeper;
  ring_hook = late_hook;
  pair_publish(&p, 2, 0);
  cr_assert(late_sleeps);
  cr_assert(is_readable(p.fd));
  ring_hook = NULL;
  pair_free(&p);
}

/* --- Subscribe against publish; core.md test 36 --- */

static void on_seam(void *arg, const ring_record_s *rec) {
  counted_s *c = (counted_s *)arg;
  c->count += rec->hash == c->kind;
  if (!rec->hash)
    atomic_fetch_add(&c->board->passed[1], 1);
}

static int seam_publisher(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  if (ring_join(r, slot) < 0)
    return 1;
  uint32_t noise = 0;
  for (uint64_t i = 1; i <= b->each;) {
    bool is_owed = atomic_load(&b->value) >= i; /* subscribed is answered */
    if (!is_owed && ++noise - atomic_load(&b->passed[1]) > 10000) {
      noise--; /* a lap would hide what was owed */
      sched_yield();
      continue;
    }
    ring_message_s m = {.hash = is_owed ? i : 0};
    ring_place_s p;
    if (publish_s(r, NULL, &m, &p) < 0 || drain(r, on_nothing, NULL) < 0)
      return 2;
    i += is_owed;
  }
  return 0;
}

static int seam_subscriber(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  counted_s seen = {0};
  int fd = ring_join(r, slot);
  if (fd < 0)
    return 1;
  for (uint32_t i = 1; i <= b->each; i++) {
    chanref_s ref = {0};
    seen = (counted_s){.kind = i, .board = b};
    ring_subscribe(r, i, &ref);
    while (drain(r, on_seam, &seen) < 0)
      ;
    atomic_store(&b->value, i); /* answered */
    for (uint64_t from = now_ms(); !seen.count;) {
      ring_turn(r);
      if (ring_commit(r, NULL) < 0)
        return 2;
      while (drain(r, on_seam, &seen) < 0)
        b->laps[slot]++;
      if (!seen.count && !sleep_well(r, fd))
        return 7;
      if (now_ms() - from > 5000)
        return 8;
    }
    ring_unsubscribe(r, &ref);
  }
  return 0;
}

Test(ring, what_is_published_after_an_answered_subscribe_always_arrives,
     .timeout = 1000) {
  board_s *b = shared_memory(sizeof *b);
  ring_config_s c = small;
  c.size = 4 << 20;
  ring_s *r = make(&c);
  b->each = soak(100000, 2000000);
  pid_t s = spawn(seam_subscriber, r, 1, b);
  pid_t p = spawn(seam_publisher, r, 0, b);
  cr_assert_eq(reap(s), 0);
  cr_assert_eq(reap(p), 0);
  cr_assert_eq(b->laps[1], 0);
  ring_free(r);
}

/* --- The store's part of a commit --- */

typedef struct {
  ring_s *r;
  stored_s *stored;
  store_s store;
} desk_s;

static desk_s desk_make(void) {
  desk_s d = {.r = make_joined(&small, 0, NULL),
              .stored = calloc(1, sizeof(stored_s))};
  cr_assert_not_null(d.stored);
  d.stored->most = STORE_MAX;
  d.store = (store_s){{&store_ops}, d.stored, 0};
  return d;
}

static void desk_free(desk_s *d) {
  ring_free(d->r);
  free(d->stored);
}

static ring_place_s desk_append(desk_s *d, uint16_t flags, const char *key) {
  ring_message_s m = {.hash = 4, .flags = flags, .key = view_str(key)};
  ring_place_s p;
  cr_assert_eq(ring_append(d->r, &m, 1, &p), 0);
  return p;
}

static ring_verdict_s desk_verdict(desk_s *d, ring_place_s p) {
  ring_verdict_s v = {RING_PENDING, 0};
  cr_assert_eq(ring_verdict(d->r, p, &v), 0);
  return v;
}

Test(ring, a_batch_without_history_makes_no_transaction) {
  desk_s d = desk_make();
  desk_append(&d, 0, NULL);
  desk_append(&d, 0, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(d.stored->transactions, 0);
  cr_assert_eq(drain(d.r, on_nothing, NULL), 2);
  desk_free(&d);
}

Test(ring, a_whole_batch_makes_one_transaction) {
  desk_s d = desk_make();
  ring_place_s a = desk_append(&d, RING_STORE, NULL);
  ring_place_s b = desk_append(&d, 0, NULL);
  ring_place_s c = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(d.stored->transactions, 1);
  cr_assert_eq(d.stored->committed, c.id);
  cr_assert_eq(store_times(d.stored, a.id), 1);
  cr_assert_eq(store_times(d.stored, b.id), 0);
  cr_assert_eq(store_times(d.stored, c.id), 1);
  desk_free(&d);
}

Test(ring, the_store_gets_records_that_meet_the_end_whole) {
  desk_s d = desk_make();
  char body[1024];
  in_order_s o = {0};
  ring_place_s p;
  for (uint32_t i = 0; i < STORE_MAX; i++) {
    ring_message_s m =
        message_of(d.r, VIEW_LIT("w"), 0, i, body, i * 7919u % 1025);
    m.flags = RING_STORE;
    cr_assert_eq(ring_append(d.r, &m, 1, &p), 0);
    cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
    cr_assert_eq(drain(d.r, on_in_order, &o), 1);
    cr_assert_eq(d.stored->ids[i], p.id);
  }
  cr_assert_eq(d.stored->torn, 0);
  cr_assert_eq(o.faults, 0);
  desk_free(&d);
}

Test(ring, a_duplicate_within_a_batch_is_told_the_first_id) {
  desk_s d = desk_make();
  last_s l = {.count = 0};
  ring_place_s a = desk_append(&d, RING_STORE, "k1");
  ring_place_s b = desk_append(&d, RING_STORE, "k1");
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(desk_verdict(&d, a).verdict, RING_KEPT);
  cr_assert_eq(desk_verdict(&d, b).verdict, RING_DUPLICATE);
  cr_assert_eq(desk_verdict(&d, b).other, a.id);
  cr_assert_eq(drain(d.r, on_last, &l), 2);
  cr_assert_eq(l.rec.verdict.verdict, RING_DUPLICATE, "its origin sees it");
  desk_free(&d);
}

Test(ring, a_refused_group_is_refused_whole_and_nobody_else_sees_it) {
  desk_s d = desk_make();
  ring_s *other = ring_share(d.r);
  cr_assert_geq(ring_join(other, 1), 0);
  ring_message_s m[3] = {{.flags = RING_STORE}, {.hash = 2}, {.hash = 3}};
  ring_place_s p[3];
  last_s l = {.count = 0};
  d.stored->most = 2;
  cr_assert_eq(ring_append(d.r, m, 3, p), 0);
  ring_place_s one = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  for (int i = 0; i < 3; i++)
    cr_assert_eq(desk_verdict(&d, p[i]).verdict, RING_REFUSED);
  cr_assert_eq(desk_verdict(&d, one).verdict, RING_KEPT);
  cr_assert_eq(drain(other, on_last, &l), 4, "four were passed");
  cr_assert_eq(l.count, 1, "one was shown");
  cr_assert_eq(l.rec.id, one.id);
  ring_free(other);
  desk_free(&d);
}

Test(ring, a_commit_that_failed_voids_what_the_store_does_not_have) {
  desk_s d = desk_make();
  ring_place_s a = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  d.stored->fail_commit = 1;
  ring_place_s b = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(desk_verdict(&d, a).verdict, RING_KEPT);
  cr_assert_eq(desk_verdict(&d, b).verdict, RING_VOID);
  d.stored->fail_commit = 1;
  d.stored->is_kept = true;
  ring_place_s c = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(desk_verdict(&d, c).verdict, RING_KEPT);
  cr_assert_eq(store_times(d.stored, c.id), 1);
  desk_free(&d);
}

Test(ring, a_store_that_cannot_tell_leaves_everything_pending) {
  desk_s d = desk_make();
  ring_verdict_s v;
  d.stored->fail_commit = 1;
  d.stored->fail_reopen = 1;
  d.stored->is_kept = true;
  ring_place_s a = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), -1);
  cr_assert_eq(errno, EIO);
  cr_assert_eq(ring_verdict(d.r, a, &v), -1);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(desk_verdict(&d, a).verdict, RING_KEPT);
  cr_assert_eq(store_times(d.stored, a.id), 1, "not twice");
  desk_free(&d);
}

Test(ring, a_store_that_cannot_begin_holds_up_only_what_comes_after) {
  desk_s d = desk_make();
  ring_verdict_s v;
  d.stored->fail_begin = 1;
  ring_place_s a = desk_append(&d, 0, NULL);
  ring_place_s b = desk_append(&d, RING_STORE, NULL);
  cr_assert_eq(ring_commit(d.r, &d.store.super), -1);
  cr_assert_eq(desk_verdict(&d, a).verdict, RING_KEPT);
  cr_assert_eq(ring_verdict(d.r, b, &v), -1);
  cr_assert_eq(errno, EAGAIN);
  cr_assert_eq(ring_commit(d.r, &d.store.super), 0);
  cr_assert_eq(desk_verdict(&d, b).verdict, RING_KEPT);
  desk_free(&d);
}

Test(ring, the_channels_entry_knows_the_last_id_and_the_one_before) {
  desk_s d = desk_make();
  chanref_s ref = {0};
  uint64_t last, before;
  ring_subscribe(d.r, 4, &ref);
  ring_place_s a = desk_append(&d, 0, NULL);
  ring_place_s b = desk_append(&d, 0, NULL);
  cr_assert_eq(ring_commit(d.r, NULL), 0);
  cr_assert_eq(chantable_last(ring_channels(d.r), 4, &last, &before), 0);
  cr_assert_eq(last, b.id);
  cr_assert_eq(before, a.id);
  cr_assert_eq(chantable_last(ring_channels(d.r), 5, &last, &before), -1);
  cr_assert_eq(errno, ENOENT);
  desk_free(&d);
}

/* --- A verdict after a lap --- */

Test(ring, a_verdict_that_was_overwritten_is_not_made_up) {
  ring_s *r = make_joined(&small, 0, NULL);
  static char body[1024];
  ring_message_s m = {.hash = 1, .body = view_of(body, 1000)};
  ring_place_s first, p;
  ring_verdict_s v;
  cr_assert_eq(publish_s(r, NULL, &m, &first), 0);
  cr_assert_eq(ring_verdict(r, first, &v), 0);
  for (int i = 0; i < 20; i++)
    cr_assert_eq(publish_s(r, NULL, &m, &p), 0);
  cr_assert_eq(ring_verdict(r, first, &v), -1);
  cr_assert_eq(errno, EOVERFLOW);
  ring_free(r);
}

/* --- Two rounds, then the next turn --- */

static ring_s *chatter;
static unsigned chatter_left;

static void chatter_hook(const char *point) {
  ring_message_s m = {.hash = 3};
  ring_place_s p;
  if (strcmp(point, "commit: decided") || !chatter_left)
    return;
  chatter_left--;
  if (ring_append(chatter, &m, 1, &p) < 0)
    abort();
}

Test(ring, a_commit_ends_after_two_rounds_and_must_not_sleep_then) {
  ring_s *r = make_joined(&small, 0, NULL);
  ring_message_s m = {.hash = 1};
  ring_place_s p;
  chatter = ring_share(r);
  cr_assert_geq(ring_join(chatter, 1), 0);
  cr_assert_eq(ring_append(r, &m, 1, &p), 0);
  chatter_left = 3;
  ring_hook = chatter_hook;
  cr_assert_eq(ring_commit(r, NULL), 1);
  cr_assert_eq(drain(r, on_nothing, NULL), 2);
  cr_assert(!ring_may_sleep(r));
  cr_assert_eq(ring_commit(r, NULL), 0);
  cr_assert_eq(drain(r, on_nothing, NULL), 2);
  cr_assert(ring_may_sleep(r));
  ring_hook = NULL;
  ring_free(chatter);
  ring_free(r);
}

/* --- Durable: a thread waits for the store --- */

typedef struct {
  ring_s *r;
  store_s store;
  _Atomic int kicks, is_over;
  int fault;
} thread_s;

static void *commit_thread(void *arg) {
  thread_s *t = (thread_s *)arg;
  while (!atomic_load(&t->is_over))
    if (atomic_exchange(&t->kicks, 0)) {
      if (ring_commit_wait(t->r, &t->store.super) < 0)
        t->fault = 1;
    } else {
      pause_ms(1);
    }
  return NULL;
}

static int durable_worker(ring_s *r, unsigned slot, void *arg) {
  board_s *b = (board_s *)arg;
  thread_s t = {.r = r, .store = {{&store_ops}, &b->stored, 0}};
  witness_s w = {{.board = b, .slot = slot}, .stored = &b->stored};
  pthread_t thread;
  char body[64];
  int fd = ring_join(r, slot);
  if (fd < 0 || pthread_create(&thread, NULL, commit_thread, &t))
    return 1;
  ring_watch_all(r, 1);
  atomic_fetch_add(&b->flag, 1);
  while (atomic_load(&b->flag) < 2)
    ;
  for (uint32_t seq = 0; w.super.count < 2 * b->each;) {
    ring_turn(r);
    ring_message_s m = message_of(r, VIEW_LIT("w"), slot, seq, body, 64);
    ring_place_s p;
    m.flags = RING_STORE;
    if (seq < b->each && ring_append(r, &m, 1, &p) == 0)
      seq++;
    if (ring_commit_due(r))
      atomic_store(&t.kicks, 1);
    if (drain(r, on_witness, &w) < 0 || w.super.fault)
      return 10 + w.super.fault;
    if (seq == b->each && w.super.count < 2 * b->each && !sleep_well(r, fd))
      return 7;
  }
  atomic_store(&t.is_over, 1);
  pthread_join(thread, NULL);
  return t.fault;
}

Test(ring, in_durable_mode_threads_commit_and_one_sync_serves_all_workers,
     .timeout = 100) {
  ring_config_s c = small;
  c.is_durable = true;
  c.size = 1 << 20; /* nobody is lapped */
  board_s *b = shared_memory(sizeof *b);
  ring_s *r = make(&c);
  b->each = 500;
  b->stored.most = STORE_MAX;
  b->stored.commit_ms = 2;
  pid_t one = spawn(durable_worker, r, 0, b);
  pid_t two = spawn(durable_worker, r, 1, b);
  cr_assert_eq(reap(one), 0);
  cr_assert_eq(reap(two), 0);
  cr_assert_eq(b->stored.count, 1000);
  cr_assert_eq(b->stored.torn, 0);
  cr_assert_lt(b->stored.transactions, 500);
  ring_free(r);
}
