/* ring_commit.c - from pending to stable.
 *
 * Any worker does it for all, the records of dead ones too. Invariant: a record
 * below `stable` has its verdict, and if it was kept and concerns the store, it
 * is in the store, once. Whoever dies at whatever step leaves it so that the
 * next one does the same again, with the same result: verdicts are written
 * before the store commits, the store says up to which id it has everything
 * (`committed`), noting an id twice changes nothing, and stable moves last.
 *
 * The order of steps is the one of the model tests/models/commit.pml. */
#include "ring_shared.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- Records in place --- */

static _Atomic uint64_t *word_at(const ring_s *r, uint64_t position) {
  return r->words + position % r->size / 8;
}

static uint64_t header_word(const ring_s *r, uint64_t position, size_t at) {
  return atomic_load_explicit(word_at(r, position + at), memory_order_relaxed);
}

static uint32_t record_bytes(const ring_s *r, uint64_t position) {
  uint64_t w = header_word(r, position, 0);
  uint32_t bytes;
  memcpy(&bytes, &w, sizeof bytes);
  assert(bytes >= sizeof(header_s) && bytes <= r->record_max);
  return bytes;
}

static uint16_t record_flags(const ring_s *r, uint64_t position) {
  uint64_t w = header_word(r, position, 0);
  uint16_t flags;
  memcpy(&flags, (char *)&w + offsetof(header_s, flags), sizeof flags);
  return flags;
}

static uint32_t record_group_left(const ring_s *r, uint64_t position) {
  uint64_t w = header_word(r, position, 56);
  uint32_t left;
  memcpy(&left, (char *)&w + offsetof(header_s, group_left) - 56, sizeof left);
  return left;
}

static uint16_t record_slot(const ring_s *r, uint64_t position) {
  uint64_t w = header_word(r, position, offsetof(header_s, slot));
  uint16_t slot;
  memcpy(&slot, &w, sizeof slot);
  return slot;
}

static uint64_t record_id(const ring_s *r, uint64_t position) {
  return header_word(r, position, offsetof(header_s, id));
}

static void record_decide(const ring_s *r, uint64_t position,
                          ring_verdict_s v) {
  uint64_t w = (uint64_t)v.verdict << 56 | v.other;
  atomic_store_explicit(word_at(r, position + offsetof(header_s, verdict)), w,
                        memory_order_relaxed);
}

static ring_verdict_e record_verdict(const ring_s *r, uint64_t position) {
  uint64_t w = header_word(r, position, offsetof(header_s, verdict));
  return (ring_verdict_e)(w >> 56);
}

/* A view of the whole record; bytes between stable and head stay as they are,
 * so only one that meets the end is copied. */
static void record_open(ring_s *r, uint64_t position, ring_record_s *out) {
  size_t at = (size_t)(position % r->size), n = record_bytes(r, position);
  const char *bytes = (const char *)r->words + at;
  if (n > r->size - at) {
    ring_copy_out(r, position, r->commit.scratch, n);
    bytes = r->commit.scratch;
  }
  ring_record_of(r, position, bytes, out);
}

/* --- A batch: the records from stable to `end` --- */

typedef struct {
  ring_store_s *store;
  uint64_t from, end, last_id;
  uint64_t committed;
  bool has_begun;
} batch_s;

/* A group as it lies in the ring. */
typedef struct {
  uint64_t from, end, last_id;
  size_t n;
  bool concerns_store;
} span_s;

static span_s span_at(const ring_s *r, uint64_t position) {
  span_s s = {.from = position, .end = position};
  s.n = (size_t)record_group_left(r, position) + 1;
  for (size_t i = 0; i < s.n; i++) {
    s.last_id = record_id(r, s.end);
    s.concerns_store |= (record_flags(r, s.end) & RING_STORE) != 0;
    s.end += record_bytes(r, s.end);
  }
  return s;
}

static void span_decide(const ring_s *r, const span_s *s, ring_verdict_e v) {
  uint64_t position = s->from;
  for (size_t i = 0; i < s->n; i++) {
    record_decide(r, position, (ring_verdict_s){.verdict = v});
    position += record_bytes(r, position);
  }
}

static int group_room(commit_s *c, size_t n) {
  if (n <= c->group_cap)
    return 0;
  ring_record_s *group = realloc(c->group, n * sizeof *group);
  if (group)
    c->group = group;
  ring_verdict_s *verdicts = realloc(c->verdicts, n * sizeof *verdicts);
  if (verdicts)
    c->verdicts = verdicts;
  if (!group || !verdicts)
    return -1;
  c->group_cap = n;
  return 0;
}

static void span_put(ring_s *r, batch_s *b, const span_s *s) {
  commit_s *c = &r->commit;
  if (group_room(c, s->n) < 0) {
    span_decide(r, s, RING_VOID);
    return;
  }
  uint64_t position = s->from;
  for (size_t i = 0; i < s->n; i++) {
    record_open(r, position, &c->group[i]);
    c->verdicts[i] = (ring_verdict_s){.verdict = RING_KEPT};
    position += record_bytes(r, position);
  }
  b->store->ops->put(b->store, c->group, s->n, c->verdicts);
  for (size_t i = 0; i < s->n; i++) {
    assert(c->verdicts[i].verdict != RING_PENDING);
    record_decide(r, c->group[i].position, c->verdicts[i]);
  }
}

/* Step 3 for one group. -1: the store cannot be asked. */
static int span_commit(ring_s *r, batch_s *b, const span_s *s) {
  if (!s->concerns_store || !b->store) {
    span_decide(r, s, RING_KEPT);
    return 0;
  }
  if (!b->has_begun && b->store->ops->begin(b->store, &b->committed) < 0)
    return -1;
  b->has_begun = true;
  RING_POINT("commit: begun");
  /* What the store covers has its verdict: who committed it died after. */
  if (s->last_id > b->committed)
    span_put(r, b, s);
  return 0;
}

/* Step 3. The batch ends where the store could not be asked. */
static void batch_decide(ring_s *r, batch_s *b) {
  uint64_t position = b->from;
  while (position < b->end) {
    span_s s = span_at(r, position);
    if (span_commit(r, b, &s) < 0) {
      b->end = position;
      break;
    }
    b->last_id = s.last_id;
    position = s.end;
  }
}

static void batch_void_above(ring_s *r, const batch_s *b, uint64_t id) {
  for (uint64_t p = b->from; p < b->end; p += record_bytes(r, p))
    if (record_id(r, p) > id)
      record_decide(r, p, (ring_verdict_s){.verdict = RING_VOID});
}

/* Step 4. -1: nobody knows whether it is stored, so nothing may move. */
static int batch_store(ring_s *r, batch_s *b) {
  if (!b->has_begun || b->store->ops->commit(b->store, b->last_id) == 0)
    return 0;
  if (b->store->ops->reopen(b->store, &b->committed) < 0)
    return -1;
  batch_void_above(r, b, b->committed);
  return 0;
}

/* What the channel table and the wake-ups need to know of the batch. */
static void batch_note(ring_s *r, const batch_s *b) {
  commit_s *c = &r->commit;
  c->touched_count = 0;
  c->origins = (slotset_s){{0}};
  for (uint64_t p = b->from; p < b->end; p += record_bytes(r, p)) {
    slotset_add(&c->origins, record_slot(r, p));
    if (record_verdict(r, p) != RING_KEPT)
      continue;
    uint64_t hash = header_word(r, p, offsetof(header_s, hash));
    touched_s *last = &c->touched[c->touched_count - (c->touched_count > 0)];
    uint32_t entry = c->touched_count && last->hash == hash
                         ? last->entry
                         : chantable_find(&r->table, hash);
    if (entry)
      chantable_note(&r->table, entry, record_id(r, p));
    if (c->touched_count && last->hash == hash)
      continue;
    if (c->touched_count < TOUCHED_MAX)
      c->touched[c->touched_count++] = (touched_s){hash, entry};
  }
}

/* Step 5. */
static void batch_publish(ring_s *r, const batch_s *b) {
  shared_s *s = r->shared;
  mark_s *m = &s->marks[ring_load(&s->marks[0].position) == b->from];
  atomic_store_explicit(&m->position, b->end, memory_order_release);
  atomic_store_explicit(&m->id, b->last_id, memory_order_release);
  RING_POINT("commit: marked");
  atomic_store_explicit(&s->stable, b->end, memory_order_release);
  ring_fence();
  RING_POINT("commit: stable");
}

/* --- Whom it concerns (step 7) --- */

static bool slotset_any(const slotset_s *s) {
  for (unsigned i = 0; i < CHANTABLE_SLOTS_MAX / 64; i++)
    if (s->bits[i])
      return true;
  return false;
}

static bool slot_is_concerned(const ring_s *r, unsigned i, uint64_t stable) {
  const slot_s *slot = ring_slot(r, i);
  return slotset_has(&r->commit.origins, i) ||
         r->commit.touched_count == TOUCHED_MAX ||
         atomic_load(&slot->watches) ||
         stable - ring_load(&slot->cursor) >= r->size / 2;
}

/* After stable moved and a fence: flags and counts are read only now. An entry
 * that was not there before may be there now. Still under the store lock, so
 * that entries stay what they are. */
static slotset_s batch_concerns(ring_s *r, uint64_t stable) {
  slotset_s wake = {{0}}, rest = {{0}};
  for (unsigned i = 0; i < r->slots; i++) {
    const slot_s *slot = ring_slot(r, i);
    if (atomic_load(&slot->state) == SLOT_LIVE &&
        atomic_load(&slot->is_sleeping))
      slotset_add(slot_is_concerned(r, i, stable) ? &wake : &rest, i);
  }
  for (size_t t = 0; slotset_any(&rest) && t < r->commit.touched_count; t++) {
    const touched_s *touched = &r->commit.touched[t];
    uint32_t entry = touched->entry ? touched->entry
                                    : chantable_find(&r->table, touched->hash);
    if (entry)
      chantable_interest(&r->table, entry, &rest, &wake);
  }
  return wake;
}

static void slots_wake(ring_s *r, const slotset_s *wake) {
  for (unsigned i = 0; i < r->slots; i++)
    if (slotset_has(wake, i) &&
        atomic_exchange(&ring_slot(r, i)->is_sleeping, 0))
      ring_ring(r, i);
}

/* --- Commit --- */

/* Steps 2 to 7, with the store lock, which is given back. -1: the store. */
static int commit_locked(ring_s *r, ring_store_s *store) {
  shared_s *s = r->shared;
  slotset_s wake = {{0}};
  batch_s b = {.store = store, .from = ring_load(&s->stable)};
  RING_POINT("commit: locked");
  b.end = ring_load(&s->head);
  uint64_t head = b.end;
  if (b.end != b.from)
    batch_decide(r, &b);
  RING_POINT("commit: decided");
  int rc = batch_store(r, &b);
  RING_POINT("commit: stored");
  if (rc == 0 && b.end != b.from) {
    batch_note(r, &b);
    RING_POINT("commit: noted");
    batch_publish(r, &b);
    wake = batch_concerns(r, b.end);
  }
  int e = errno;
  chantable_reap(&r->table);
  shlock_give(&s->store_lock);
  ring_fence(); /* then the caller looks at head again */
  RING_POINT("commit: unlocked");
  slots_wake(r, &wake);
  RING_POINT("commit: woke");
  errno = e;
  return rc < 0 || b.end != head ? -1 : 0;
}

static bool is_pending(const ring_s *r) {
  return ring_load(&r->shared->head) != ring_load(&r->shared->stable);
}

int ring_commit(ring_s *r, ring_store_s *store) {
  r->must_look = false;
  for (int round = 0; round < 2; round++) {
    ring_fence();
    if (!is_pending(r) && !chantable_is_littered(&r->table))
      return 0;
    if (shlock_try(&r->shared->store_lock, (unsigned)r->slot) < 0)
      return 0; /* a living one has it: it will look again */
    if (commit_locked(r, store) < 0)
      return -1;
  }
  r->must_look = is_pending(r);
  return r->must_look;
}

bool ring_commit_due(ring_s *r) {
  r->must_look = false;
  ring_fence();
  return is_pending(r) || chantable_is_littered(&r->table);
}

/* The watchdog must find a thread other than the loop, too. */
static void thread_register(ring_s *r) {
  static _Thread_local int32_t tid;
  if (!tid)
    tid = (int32_t)syscall(SYS_gettid);
  if (r->commit.tid != tid)
    atomic_store(&ring_slot(r, (unsigned)r->slot)->tids[THREAD_COMMIT], tid);
  r->commit.tid = tid;
}

int ring_commit_wait(ring_s *r, ring_store_s *store) {
  thread_register(r);
  if (shlock_wait(&r->shared->store_lock, (unsigned)r->slot) > 0)
    ring_fence(); /* its holder died: done again from the start */
  if (commit_locked(r, store) < 0)
    return -1;
  return is_pending(r);
}
