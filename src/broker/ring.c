/* ring.c - making the ring, appending, reading, sleeping, deaths.
 *
 * Invariants, at every step of every process:
 * - cursor <= stable <= head <= reserve, and head - stable <= size;
 * - reserve never goes back. It is raised before a byte is overwritten, with a
 *   full fence between, so a reader that copied an overwritten byte and then
 *   fences sees a reserve more than a ring above its cursor;
 * - head moves last: a writer that died left either a whole group or nothing.
 *   Nothing else that it wrote is believed;
 * - bytes from stable to head are never overwritten.
 *
 * How a record becomes stable is in ring_commit.c. */
#include "ring_shared.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef RING_HOOKS
void (*ring_hook)(const char *point);
#endif

/* --- The clock of ids --- */

static uint64_t clock_us(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* BOOTTIME neither steps nor stands still in a suspend. */
uint64_t ring_clock(const ring_s *r) {
  return clock_us(CLOCK_BOOTTIME) + (uint64_t)r->shared->clock_offset;
}

/* --- Making --- */

static bool config_is_good(const ring_config_s *c) {
  return c->size % 64 == 0 && c->size <= UINT32_MAX && c->message_max &&
         c->message_max <= c->size / 16 && c->workers && c->channels &&
         c->workers < CHANTABLE_SLOTS_MAX && c->floor < 1ull << 53 &&
         c->size / 4 >= sizeof(header_s) + 8;
}

static size_t slots_bytes(unsigned slots) {
  return sizeof(shared_s) + slots * sizeof(slot_s);
}

/* The handle's own memory. */
static int handle_init(ring_s *r) {
  size_t scratch = r->record_max > RING_CHUNK ? r->record_max : RING_CHUNK;
  r->slot = -1;
  r->scratch = malloc(scratch);
  r->commit.scratch = malloc(r->record_max);
  r->commit.group_cap = 1;
  r->commit.group = malloc(sizeof *r->commit.group);
  r->commit.verdicts = malloc(sizeof *r->commit.verdicts);
  if (r->scratch && r->commit.scratch && r->commit.group && r->commit.verdicts)
    return 0;
  errno = ENOMEM;
  return -1;
}

static int shared_map(ring_s *r, const ring_config_s *c, size_t table_bytes) {
  r->map_bytes = slots_bytes(r->slots) + table_bytes + r->size;
  int fd = memfd_create("crier-ring", MFD_CLOEXEC);
  if (fd < 0)
    return -1;
  void *p = MAP_FAILED;
  if (ftruncate(fd, (off_t)r->map_bytes) == 0)
    p = mmap(NULL, r->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int e = errno;
  close(fd);
  errno = e;
  if (p == MAP_FAILED)
    return -1;
  r->shared = (shared_s *)p;
  char *table = (char *)p + slots_bytes(r->slots);
  r->words = (_Atomic uint64_t *)(void *)(table + table_bytes);
  chantable_open(&r->table, table, 0);
  return chantable_init(table, c->channels, r->slots);
}

static int shared_init(ring_s *r, const ring_config_s *c) {
  shared_s *s = r->shared;
  if (getrandom(&s->key, sizeof s->key, 0) != sizeof s->key ||
      shlock_init(&s->lock) < 0 || shlock_init(&s->store_lock) < 0)
    return -1;
  s->clock_offset =
      (int64_t)(clock_us(CLOCK_REALTIME) - clock_us(CLOCK_BOOTTIME));
  uint64_t id = ring_clock(r);
  atomic_init(&s->last_id, id > c->floor ? id : c->floor);
  atomic_init(&s->marks[0].id, s->last_id);
  return 0;
}

static int eventfds_make(ring_s *r) {
  for (unsigned i = 0; i < r->slots; i++) {
    r->eventfds[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->eventfds[i] < 0)
      return -1;
  }
  return 0;
}

ring_s *ring_new(const ring_config_s *c) {
  if (!config_is_good(c)) {
    errno = EINVAL;
    return NULL;
  }
  ring_s *r = calloc(1, sizeof *r);
  if (!r)
    return NULL;
  memset(r->eventfds, -1, sizeof r->eventfds);
  r->is_owner = true;
  r->size = c->size;
  r->slots = c->workers + 1;
  r->is_durable = c->is_durable;
  r->body_max = c->message_max;
  r->record_max =
      sizeof(header_s) + ring_pad(c->message_max) + RING_NAMES_MAX + 4 * 8;
  if (r->record_max > r->size / 4)
    r->record_max = r->size / 4 / 8 * 8;
  if (shared_map(r, c, chantable_bytes(c->channels, r->slots)) == 0 &&
      shared_init(r, c) == 0 && eventfds_make(r) == 0 && handle_init(r) == 0)
    return r;
  int e = errno;
  ring_free(r);
  errno = e;
  return NULL;
}

ring_s *ring_share(ring_s *from) {
  ring_s *r = calloc(1, sizeof *r);
  if (!r)
    return NULL;
  r->shared = from->shared;
  r->words = from->words;
  r->size = from->size;
  r->record_max = from->record_max;
  r->body_max = from->body_max;
  r->slots = from->slots;
  r->is_durable = from->is_durable;
  memcpy(r->eventfds, from->eventfds, sizeof r->eventfds);
  chantable_open(&r->table, from->table.shared, 0);
  if (handle_init(r) == 0)
    return r;
  ring_free(r);
  errno = ENOMEM;
  return NULL;
}

void ring_free(ring_s *r) {
  if (!r)
    return;
  free(r->scratch);
  free(r->commit.scratch);
  free(r->commit.group);
  free(r->commit.verdicts);
  if (r->is_owner) {
    if (r->shared)
      munmap(r->shared, r->map_bytes);
    for (unsigned i = 0; i < r->slots; i++)
      if (r->eventfds[i] >= 0)
        close(r->eventfds[i]);
  }
  free(r);
}

/* --- Bytes --- */

/* Copy in, from offset `at`, which is returned moved on, within the ring. The
 * last word is filled up with zeros. */
static size_t ring_copy_in(ring_s *r, size_t at, const void *from, size_t n) {
  const char *p = (const char *)from;
  while (n) {
    size_t span = r->size - at < n ? r->size - at : n;
    _Atomic uint64_t *to = r->words + at / 8;
    size_t i = 0;
    for (uint64_t w; span - i >= 8; i += 8) {
      memcpy(&w, p + i, 8);
      atomic_store_explicit(to++, w, memory_order_relaxed);
    }
    if (i < span) {
      uint64_t w = 0;
      memcpy(&w, p + i, span - i);
      atomic_store_explicit(to, w, memory_order_relaxed);
    }
    at += ring_pad(span);
    if (at == r->size)
      at = 0;
    p += span;
    n -= span;
  }
  return at;
}

void ring_copy_out(const ring_s *r, uint64_t position, void *to, size_t n) {
  size_t at = (size_t)(position % r->size);
  char *p = (char *)to;
  while (n) {
    size_t span = r->size - at < n ? r->size - at : n;
    const _Atomic uint64_t *from = r->words + at / 8;
    for (size_t i = 0; i < span; i += 8) {
      uint64_t w = atomic_load_explicit(from++, memory_order_relaxed);
      memcpy(p + i, &w, 8);
    }
    p += span;
    n -= span;
    at = 0;
  }
}

static view_s take_view(const char **p, size_t n) {
  view_s v = view_of(*p, n);
  *p += ring_pad(n);
  return v;
}

void ring_record_of(const ring_s *r, uint64_t position, const char *bytes,
                    ring_record_s *out) {
  header_s h;
  memcpy(&h, bytes, sizeof h);
  const char *p = bytes + sizeof h;
  out->position = position;
  out->id = h.id;
  out->verdict.verdict = (ring_verdict_e)(h.verdict >> 56);
  out->verdict.other = h.verdict & ((1ull << 56) - 1);
  out->is_own = h.slot == r->slot && h.life == r->life;
  out->group_left = h.group_left;
  out->hash = h.hash;
  out->connection = h.connection;
  out->ttl = h.ttl;
  out->kind = h.kind;
  out->op = h.op;
  out->flags = h.flags;
  out->channel = take_view(&p, h.channel);
  out->type = take_view(&p, h.type);
  out->event = take_view(&p, h.event);
  out->key = take_view(&p, h.key);
  out->body = take_view(&p, h.body);
}

/* --- Appending --- */

size_t ring_bytes(const ring_message_s *m) {
  return sizeof(header_s) + ring_pad(m->channel.len) + ring_pad(m->type.len) +
         ring_pad(m->event.len) + ring_pad(m->key.len) + ring_pad(m->body.len);
}

size_t ring_group_max(const ring_s *r) {
  return r->size / 4;
}

uint64_t ring_hash(const ring_s *r, view_s channel) {
  return siphash_13(r->shared->key, channel);
}

static bool message_fits(const ring_s *r, const ring_message_s *m) {
  size_t names = RING_NAMES_MAX;
  const view_s *all[] = {&m->channel, &m->type, &m->event, &m->key};
  for (size_t i = 0; i < 4; i++) {
    if (all[i]->len > names)
      return false;
    names -= all[i]->len;
  }
  return m->body.len <= r->body_max && ring_bytes(m) <= r->record_max;
}

/* The bytes of a group, or 0: it does not fit. */
static size_t group_bytes(const ring_s *r, const ring_message_s *m, size_t n) {
  size_t left = ring_group_max(r);
  for (size_t i = 0; i < n; i++) {
    if (!message_fits(r, m + i) || ring_bytes(m + i) > left)
      return 0;
    left -= ring_bytes(m + i);
  }
  return ring_group_max(r) - left;
}

static size_t record_write(ring_s *r, size_t at, const ring_message_s *m,
                           uint64_t id, size_t group_left) {
  header_s h = {.bytes = (uint32_t)ring_bytes(m),
                .flags = m->flags,
                .kind = m->kind,
                .op = m->op,
                .id = id,
                .verdict = RING_PENDING,
                .hash = m->hash,
                .connection = m->connection,
                .slot = (uint16_t)r->slot,
                .life = r->life,
                .ttl = m->ttl,
                .body = (uint32_t)m->body.len,
                .type = (uint16_t)m->type.len,
                .event = (uint16_t)m->event.len,
                .channel = (uint16_t)m->channel.len,
                .key = (uint16_t)m->key.len,
                .group_left = (uint32_t)group_left};
  at = ring_copy_in(r, at, &h, sizeof h);
  RING_POINT("append: header");
  at = ring_copy_in(r, at, m->channel.data, m->channel.len);
  at = ring_copy_in(r, at, m->type.data, m->type.len);
  at = ring_copy_in(r, at, m->event.data, m->event.len);
  at = ring_copy_in(r, at, m->key.data, m->key.len);
  return ring_copy_in(r, at, m->body.data, m->body.len);
}

/* Under the ring lock, with room for `bytes`. */
static void group_write(ring_s *r, const ring_message_s *m, size_t n,
                        size_t bytes, ring_place_s *places) {
  shared_s *s = r->shared;
  uint64_t head = ring_load(&s->head);
  uint64_t id = ring_clock(r);
  uint64_t last = atomic_load_explicit(&s->last_id, memory_order_relaxed);
  if (id <= last)
    id = last + 1;
  if (head + bytes > ring_load(&s->reserve))
    atomic_store_explicit(&s->reserve, head + bytes, memory_order_relaxed);
  ring_fence(); /* reserve before the first byte */
  RING_POINT("append: reserved");
  uint64_t position = head;
  size_t at = (size_t)(head % r->size);
  for (size_t i = 0; i < n; i++) {
    places[i] = (ring_place_s){.position = position, .id = id + i};
    at = record_write(r, at, m + i, id + i, n - 1 - i);
    position += ring_bytes(m + i);
  }
  atomic_store_explicit(&s->last_id, id + n - 1, memory_order_relaxed);
  RING_POINT("append: written");
  atomic_store_explicit(&s->head, head + bytes, memory_order_release);
  RING_POINT("append: moved");
}

void ring_turn(ring_s *r) {
  shlock_turn(&r->lock_user);
  shlock_turn(&r->table.user);
}

int ring_append(ring_s *r, const ring_message_s *m, size_t n,
                ring_place_s *places) {
  shared_s *s = r->shared;
  assert(n && r->slot >= 0);
  size_t bytes = group_bytes(r, m, n);
  if (!bytes) {
    errno = EMSGSIZE;
    return -1;
  }
  /* 1 means that the last holder died: its group is whole or never was. */
  if (shlock_take(&s->lock, &r->lock_user, (unsigned)r->slot) < 0)
    return -1;
  RING_POINT("append: locked");
  uint64_t pending = ring_load(&s->head) - ring_load(&s->stable);
  bool has_room = pending <= r->size && bytes <= r->size - pending;
  if (has_room)
    group_write(r, m, n, bytes, places);
  shlock_give(&s->lock);
  RING_POINT("append: unlocked");
  if (!has_room)
    errno = EAGAIN;
  r->must_look = true; /* also when full: somebody must make room */
  return has_room ? 0 : -1;
}

/* --- Reading --- */

/* `stable` and the id of the record before it, as one. A commit writes the mark
 * that does not have stable's position, then moves stable: so the one that has
 * it stays as it is for as long as stable does. */
static uint64_t stable_with_id(const shared_s *s, uint64_t *id) {
  for (;;) {
    uint64_t stable = ring_load(&s->stable);
    for (int i = 0; i < 2; i++)
      if (ring_load(&s->marks[i].position) == stable) {
        *id = ring_load(&s->marks[i].id);
        ring_fence();
        if (ring_load(&s->stable) == stable)
          return stable;
      }
  }
}

/* The cursor goes to `position`, where everything up to `id` was seen. */
static void cursor_publish(ring_s *r) {
  slot_s *slot = ring_slot(r, (unsigned)r->slot);
  atomic_store_explicit(&slot->cursor_id, r->last_id, memory_order_relaxed);
  atomic_store_explicit(&slot->cursor, r->cursor, memory_order_release);
}

/* Copy, fence, and only then: was it overwritten meanwhile? */
static bool ring_fetch(ring_s *r, uint64_t position, void *to, size_t n) {
  ring_copy_out(r, position, to, n);
  RING_POINT("read: copied");
  ring_fence();
  return ring_load(&r->shared->reserve) - position <= r->size;
}

static int ring_lap(ring_s *r) {
  r->lap_from = r->last_id;
  r->cursor = stable_with_id(r->shared, &r->last_id);
  r->lap_to = r->last_id;
  cursor_publish(r);
  errno = EOVERFLOW;
  return -1;
}

typedef struct {
  size_t bytes, records; /* that may still be passed */
  void (*on_record)(void *arg, const ring_record_s *rec);
  void *arg;
} reading_s;

/* Show the whole records in the first `n` bytes of the scratch. The bytes of
 * those shown. */
static size_t chunk_show(ring_s *r, size_t n, reading_s *to) {
  size_t at = 0;
  while (n - at >= sizeof(header_s) && to->records && to->bytes) {
    uint32_t bytes;
    memcpy(&bytes, r->scratch + at, sizeof bytes);
    assert(bytes >= sizeof(header_s) && bytes % 8 == 0);
    if (bytes > n - at)
      break;
    ring_record_s rec;
    ring_record_of(r, r->cursor, r->scratch + at, &rec);
    assert(rec.id > r->last_id && rec.verdict.verdict != RING_PENDING);
    r->cursor += bytes;
    r->last_id = rec.id;
    at += bytes;
    to->records--;
    to->bytes -= bytes < to->bytes ? bytes : to->bytes;
    if (rec.verdict.verdict == RING_KEPT || rec.is_own)
      to->on_record(to->arg, &rec);
  }
  return at;
}

/* Take in and show some of the records from the cursor to `end`. */
static int chunk_read(ring_s *r, uint64_t end, reading_s *to) {
  size_t n = end - r->cursor < RING_CHUNK ? (size_t)(end - r->cursor)
                                          : (size_t)RING_CHUNK;
  if (!ring_fetch(r, r->cursor, r->scratch, n))
    return -1;
  if (chunk_show(r, n, to))
    return 0;
  uint32_t bytes; /* a record longer than a chunk */
  memcpy(&bytes, r->scratch, sizeof bytes);
  assert(bytes > n && bytes <= r->record_max && bytes <= end - r->cursor);
  if (!ring_fetch(r, r->cursor, r->scratch, bytes))
    return -1;
  chunk_show(r, bytes, to);
  return 0;
}

int ring_read(ring_s *r, size_t max_bytes, size_t max_records,
              void (*on_record)(void *arg, const ring_record_s *rec),
              void *arg) {
  assert(!r->is_reading && r->slot >= 0);
  uint64_t end = ring_load(&r->shared->stable);
  size_t most = max_records < INT32_MAX ? max_records : INT32_MAX;
  reading_s to = {max_bytes, most, on_record, arg};
  int rc = 0;
  r->is_reading = true;
  while (r->cursor != end && to.bytes && to.records && rc == 0) {
    rc = chunk_read(r, end, &to);
    cursor_publish(r);
  }
  r->is_reading = false;
  return rc < 0 ? ring_lap(r) : (int)(most - to.records);
}

void ring_lapped(const ring_s *r, uint64_t *from, uint64_t *to) {
  *from = r->lap_from;
  *to = r->lap_to;
}

uint64_t ring_last_id(const ring_s *r) {
  return r->last_id;
}

int ring_verdict(ring_s *r, ring_place_s place, ring_verdict_s *out) {
  header_s h;
  if (place.position >= ring_load(&r->shared->stable)) {
    errno = EAGAIN;
    return -1;
  }
  if (!ring_fetch(r, place.position, &h, sizeof h)) {
    errno = EOVERFLOW;
    return -1;
  }
  assert(h.id == place.id);
  out->verdict = (ring_verdict_e)(h.verdict >> 56);
  out->other = h.verdict & ((1ull << 56) - 1);
  return 0;
}

/* --- Sleep --- */

bool ring_may_sleep(ring_s *r) {
  slot_s *slot = ring_slot(r, (unsigned)r->slot);
  if (r->must_look)
    return false;
  atomic_store_explicit(&slot->is_sleeping, 1, memory_order_relaxed);
  ring_fence();
  if (ring_load(&r->shared->stable) != r->cursor) {
    atomic_store_explicit(&slot->is_sleeping, 0, memory_order_relaxed);
    return false;
  }
  return true;
}

void ring_woke(ring_s *r, bool was_rung) {
  slot_s *slot = ring_slot(r, (unsigned)r->slot);
  atomic_store(&slot->is_sleeping, 0);
  uint64_t count;
  if (was_rung && read(r->eventfds[r->slot], &count, sizeof count) < 0)
    assert(errno == EAGAIN);
  ring_fence(); /* then `stable` is read */
}

void ring_ring(const ring_s *r, unsigned slot) {
  uint64_t one = 1;
  /* EAGAIN: the count is at its end, so it is readable anyway. */
  if (write(r->eventfds[slot], &one, sizeof one) < 0)
    assert(errno == EAGAIN);
}

/* --- Interest --- */

void ring_watch_all(ring_s *r, int by) {
  slot_s *slot = ring_slot(r, (unsigned)r->slot);
  atomic_fetch_add(&slot->watches, (uint32_t)by);
  ring_fence(); /* before `stable` is read */
}

void ring_subscribe(ring_s *r, uint64_t hash, chanref_s *ref) {
  if (!chantable_add(&r->table, hash, ref))
    ring_watch_all(r, 1);
  ring_fence(); /* before `stable` is read */
}

void ring_unsubscribe(ring_s *r, chanref_s *ref) {
  if (!chantable_remove(&r->table, ref))
    ring_watch_all(r, -1);
}

uint64_t ring_subscribers(const ring_s *r, uint64_t hash,
                          const chanref_s *ref) {
  return chantable_subscribers(&r->table, hash) + (ref ? ref->own : 0);
}

chantable_s *ring_channels(ring_s *r) {
  return &r->table;
}

/* --- Slots, deaths --- */

int ring_join(ring_s *r, unsigned slot) {
  slot_s *s = slot < r->slots ? ring_slot(r, slot) : NULL;
  if (!s || atomic_load(&s->state) == SLOT_LIVE) {
    errno = s ? EBUSY : EINVAL;
    return -1;
  }
  r->slot = (int)slot;
  r->table.slot = slot;
  r->life = (uint16_t)(atomic_fetch_add(&s->lives, 1) + 1);
  r->must_look = true; /* the last one here may have left something pending */
  r->cursor = stable_with_id(r->shared, &r->last_id);
  cursor_publish(r);
  atomic_store(&s->tids[THREAD_LOOP], (int32_t)syscall(SYS_gettid));
  atomic_store(&s->is_sleeping, 0);
  atomic_store(&s->state, SLOT_LIVE);
  ring_fence();
  return r->eventfds[slot];
}

void ring_mark_dead(ring_s *r, unsigned slot) {
  slot_s *s = ring_slot(r, slot);
  atomic_store(&s->state, SLOT_FREE);
  atomic_store(&s->is_sleeping, 0);
  atomic_store(&s->watches, 0);
  for (int i = 0; i < THREADS; i++)
    atomic_store(&s->tids[i], 0);
  chantable_drop_slot(&r->table, slot);
  shlock_forget(&r->shared->lock, slot);
  shlock_forget(&r->shared->store_lock, slot);
  ring_fence();
  for (unsigned i = 0; i < r->slots; i++)
    if (atomic_load(&ring_slot(r, i)->state) == SLOT_LIVE)
      ring_ring(r, i);
}

/* The live slot that `slot` or, if that is -1, thread `tid` names, or -1. */
static int slot_named(const ring_s *r, int slot, int32_t tid) {
  for (unsigned i = 0; i < r->slots; i++) {
    slot_s *s = ring_slot(r, i);
    bool is_it = slot >= 0 ? slot == (int)i
                           : atomic_load(&s->tids[THREAD_LOOP]) == tid ||
                                 atomic_load(&s->tids[THREAD_COMMIT]) == tid;
    if (is_it && atomic_load(&s->state) == SLOT_LIVE)
      return (int)i;
  }
  return -1;
}

int ring_lock_holder(ring_s *r, uint64_t now_ms, uint64_t limit_ms, int *slot) {
  shared_s *s = r->shared;
  int who = -1;
  int32_t tid = 0;
  bool is_stuck =
      shlock_is_stuck(&s->lock, &r->lock_watch, now_ms, limit_ms, &who, &tid);
  /* In durable mode a disk may hold the store lock up for long. */
  if (!is_stuck && !r->is_durable)
    is_stuck = shlock_is_stuck(&s->store_lock, &r->store_watch, now_ms,
                               limit_ms, &who, &tid);
  if (!is_stuck)
    is_stuck = chantable_is_stuck(&r->table, now_ms, limit_ms, &who, &tid);
  who = is_stuck ? slot_named(r, who, tid) : -1;
  if (who >= 0)
    *slot = who;
  return who >= 0;
}

/* --- Figures --- */

void ring_marks(ring_s *r, ring_marks_s *out) {
  shared_s *s = r->shared;
  out->size = r->size;
  /* the lowest first: each may only have grown when the next is read */
  out->low_id = UINT64_MAX;
  for (unsigned i = 0; i < r->slots; i++) {
    slot_s *slot = ring_slot(r, i);
    uint64_t id = ring_load(&slot->cursor_id);
    if (atomic_load(&slot->state) == SLOT_LIVE && id < out->low_id)
      out->low_id = id;
  }
  out->stable = stable_with_id(s, &out->stable_id);
  if (out->low_id > out->stable_id)
    out->low_id = out->stable_id;
  out->head = ring_load(&s->head);
  out->reserve = ring_load(&s->reserve);
}
