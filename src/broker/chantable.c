/* chantable.c - who is interested in which channel.
 *
 * Buckets are 32-bit entry numbers (0: none), entries are taken in sequence and
 * then from a free list. Structure changes under the table's lock; entries are
 * taken out only by one who holds the store lock as well.
 *
 * Invariant: at every instant each bucket's chain is whole: an entry is linked
 * by one store, after it was filled, and unlinked by one store. `used`, the
 * free list and `high` matter to lock holders only and are made anew from the
 * chains when a holder died. An entry with a count above zero is linked. */
#include "chantable.h"
#include "ring_hook.h"
#include <assert.h>
#include <errno.h>

typedef struct {
  _Atomic uint64_t hash;
  _Atomic uint64_t last, before; /* ids */
  _Atomic uint32_t next;         /* in the chain, or in the free list */
  _Atomic uint32_t idle_next;    /* in the stack of idle ones */
  _Atomic uint32_t is_idle;      /* on that stack, or about to be */
  uint32_t is_used;              /* linked; lock holders only */
  _Atomic uint32_t counts[];     /* one for each slot */
} entry_s;

struct chantable_shared_s {
  _Alignas(64) shlock_s lock;
  _Alignas(64) _Atomic uint64_t version; /* odd while entries are taken out */
  _Atomic uint32_t high;                 /* entries ever used: 1 to high */
  _Atomic uint32_t idle;                 /* stack of entries fallen to zero */
  _Atomic uint32_t is_swept_next;        /* all entries are to be looked at */
  _Atomic uint32_t used;
  uint32_t free; /* lock holders only */
  uint32_t entries, mask, slots;
  size_t entry_size, entries_at;
  _Alignas(64) _Atomic uint32_t buckets[];
};

/* A look-up that meets a reap is made again so often. */
enum { TRIES = 1000 };

/* --- Places --- */

static size_t entry_size(unsigned slots) {
  return (sizeof(entry_s) + slots * sizeof(uint32_t) + 7) / 8 * 8;
}

/* A quarter of the entries: short chains even in a full table, and a table that
 * is mostly empty does not touch a page of buckets for each channel. */
static uint32_t bucket_count(uint32_t entries) {
  uint32_t n = 64;
  while (n < entries / 4)
    n *= 2;
  return n;
}

static size_t entries_at(uint32_t entries) {
  size_t at = sizeof(chantable_shared_s) +
              bucket_count(entries) * sizeof(_Atomic uint32_t);
  return (at + 63) / 64 * 64;
}

static entry_s *entry_at(const chantable_shared_s *s, uint32_t e) {
  assert(e && e <= s->entries);
  char *base = (char *)(uintptr_t)s + s->entries_at;
  return (entry_s *)(void *)(base + (e - 1) * s->entry_size);
}

static _Atomic uint32_t *bucket_of(chantable_shared_s *s, uint64_t hash) {
  return &s->buckets[hash & s->mask];
}

size_t chantable_bytes(uint32_t entries, unsigned slots) {
  size_t bytes = entries_at(entries) + entries * entry_size(slots);
  return (bytes + 63) / 64 * 64;
}

int chantable_init(void *mem, uint32_t entries, unsigned slots) {
  chantable_shared_s *s = (chantable_shared_s *)mem;
  s->entries = entries;
  s->slots = slots;
  s->mask = bucket_count(entries) - 1;
  s->entry_size = entry_size(slots);
  s->entries_at = entries_at(entries);
  return shlock_init(&s->lock);
}

void chantable_open(chantable_s *t, void *mem, unsigned slot) {
  *t = (chantable_s){.shared = (chantable_shared_s *)mem, .slot = slot};
}

/* --- Looking up --- */

static uint32_t table_find(chantable_shared_s *s, uint64_t hash) {
  uint32_t e = atomic_load_explicit(bucket_of(s, hash), memory_order_acquire);
  /* The bound is for one who meets a reap and strays into the free list. */
  for (uint32_t hops = 0; e && hops <= s->entries; hops++) {
    entry_s *p = entry_at(s, e);
    RING_POINT("find: step");
    if (atomic_load_explicit(&p->hash, memory_order_relaxed) == hash)
      return e;
    e = atomic_load_explicit(&p->next, memory_order_acquire);
  }
  return 0;
}

static uint64_t version_begin(const chantable_shared_s *s) {
  return atomic_load_explicit(&s->version, memory_order_acquire);
}

static bool version_held(const chantable_shared_s *s, uint64_t v) {
  atomic_thread_fence(memory_order_acquire);
  return !(v & 1) &&
         atomic_load_explicit(&s->version, memory_order_relaxed) == v;
}

static uint64_t entry_sum(const chantable_shared_s *s, uint32_t e) {
  uint64_t sum = 0;
  for (uint32_t i = 0; e && i < s->slots; i++)
    sum += atomic_load(&entry_at(s, e)->counts[i]);
  return sum;
}

uint64_t chantable_subscribers(const chantable_s *t, uint64_t hash) {
  uint64_t sum = 0;
  for (int i = 0; i < TRIES; i++) {
    uint64_t v = version_begin(t->shared);
    sum = entry_sum(t->shared, table_find(t->shared, hash));
    if (version_held(t->shared, v))
      break;
  }
  return sum;
}

int chantable_last(const chantable_s *t, uint64_t hash, uint64_t *last,
                   uint64_t *before) {
  for (int i = 0; i < TRIES; i++) {
    uint64_t v = version_begin(t->shared);
    uint32_t e = table_find(t->shared, hash);
    if (e) {
      entry_s *p = entry_at(t->shared, e);
      *last = atomic_load(&p->last);
      *before = atomic_load(&p->before);
      /* equal: one is being noted, between its two stores */
      if (*last == *before && *last)
        continue;
      if (atomic_load(&p->last) != *last)
        continue;
    }
    if (!version_held(t->shared, v))
      continue;
    if (e)
      return 0;
    break;
  }
  errno = ENOENT;
  return -1;
}

uint32_t chantable_used(const chantable_s *t) {
  return atomic_load_explicit(&t->shared->used, memory_order_relaxed);
}

shlock_s *chantable_lock(const chantable_s *t) {
  return &t->shared->lock;
}

/* --- Structure: all of this under the table's lock --- */

static void free_push(chantable_shared_s *s, uint32_t e) {
  entry_s *p = entry_at(s, e);
  p->is_used = 0;
  atomic_store_explicit(&p->next, s->free, memory_order_relaxed);
  s->free = e;
}

/* The last holder died: what no chain reaches is free. */
static void table_recover(chantable_shared_s *s) {
  uint32_t high = atomic_load(&s->high), used = 0;
  for (uint32_t e = 1; e <= high; e++)
    entry_at(s, e)->is_used = 0;
  for (uint32_t b = 0; b <= s->mask; b++)
    for (uint32_t e = atomic_load(&s->buckets[b]); e;
         e = atomic_load(&entry_at(s, e)->next), used++)
      entry_at(s, e)->is_used = 1;
  s->free = 0;
  for (uint32_t e = 1; e <= high; e++)
    if (!entry_at(s, e)->is_used)
      free_push(s, e);
  atomic_store(&s->used, used);
  atomic_store(&s->is_swept_next, 1);
  if (atomic_load(&s->version) & 1)
    atomic_fetch_add(&s->version, 1);
}

static uint32_t entry_take(chantable_shared_s *s) {
  uint32_t e = s->free;
  if (e) {
    s->free = atomic_load_explicit(&entry_at(s, e)->next, memory_order_relaxed);
    return e;
  }
  e = atomic_load_explicit(&s->high, memory_order_relaxed);
  if (e == s->entries)
    return 0;
  atomic_store(&s->high, e + 1);
  return e + 1;
}

static uint32_t entry_new(chantable_shared_s *s, uint64_t hash) {
  uint32_t e = entry_take(s);
  if (!e)
    return 0;
  entry_s *p = entry_at(s, e);
  _Atomic uint32_t *bucket = bucket_of(s, hash);
  atomic_store_explicit(&p->hash, hash, memory_order_relaxed);
  atomic_store_explicit(&p->last, 0, memory_order_relaxed);
  atomic_store_explicit(&p->before, 0, memory_order_relaxed);
  atomic_store_explicit(&p->next, atomic_load(bucket), memory_order_relaxed);
  p->is_used = 1;
  RING_POINT("add: filled");
  atomic_store_explicit(bucket, e, memory_order_release);
  atomic_fetch_add_explicit(&s->used, 1, memory_order_relaxed);
  RING_POINT("add: linked");
  return e;
}

static void entry_unlink(chantable_shared_s *s, uint32_t e) {
  entry_s *p = entry_at(s, e);
  _Atomic uint32_t *link = bucket_of(s, atomic_load(&p->hash));
  while (atomic_load_explicit(link, memory_order_relaxed) != e)
    link = &entry_at(s, atomic_load_explicit(link, memory_order_relaxed))->next;
  atomic_store_explicit(link, atomic_load(&p->next), memory_order_release);
  RING_POINT("reap: unlinked");
  free_push(s, e);
  atomic_fetch_sub_explicit(&s->used, 1, memory_order_relaxed);
}

static void entry_reap(chantable_shared_s *s, uint32_t e) {
  if (entry_at(s, e)->is_used && !entry_sum(s, e))
    entry_unlink(s, e);
}

bool chantable_is_littered(const chantable_s *t) {
  return atomic_load_explicit(&t->shared->idle, memory_order_relaxed) ||
         atomic_load_explicit(&t->shared->is_swept_next, memory_order_relaxed);
}

static void table_reap(chantable_shared_s *s) {
  uint32_t e = atomic_exchange(&s->idle, 0);
  while (e) {
    entry_s *p = entry_at(s, e);
    uint32_t next = atomic_load(&p->idle_next);
    atomic_store(&p->is_idle, 0); /* from here it may be pushed again */
    entry_reap(s, e);
    e = next;
  }
  if (!atomic_exchange(&s->is_swept_next, 0))
    return;
  uint32_t high = atomic_load(&s->high);
  for (e = 1; e <= high; e++)
    entry_reap(s, e);
}

void chantable_reap(chantable_s *t) {
  chantable_shared_s *s = t->shared;
  if (!chantable_is_littered(t))
    return;
  int rc = shlock_try(&s->lock, t->slot);
  if (rc < 0)
    return;
  if (rc > 0)
    table_recover(s);
  atomic_fetch_add(&s->version, 1);
  atomic_thread_fence(memory_order_seq_cst);
  RING_POINT("reap: begun");
  table_reap(s);
  atomic_fetch_add(&s->version, 1);
  shlock_give(&s->lock);
}

/* --- Subscriptions --- */

static uint32_t table_enter(chantable_s *t, uint64_t hash) {
  chantable_shared_s *s = t->shared;
  int rc = shlock_take(&s->lock, &t->user, t->slot);
  if (rc < 0)
    return 0;
  if (rc > 0)
    table_recover(s);
  RING_POINT("add: locked");
  uint32_t e = table_find(s, hash);
  if (!e)
    e = entry_new(s, hash);
  if (e)
    atomic_fetch_add(&entry_at(s, e)->counts[t->slot], 1);
  else /* entries that a death left idle may be the cause */
    atomic_store(&s->is_swept_next, 1);
  RING_POINT("add: counted");
  shlock_give(&s->lock);
  return e;
}

bool chantable_add(chantable_s *t, uint64_t hash, chanref_s *ref) {
  if (ref->entry) {
    atomic_fetch_add(&entry_at(t->shared, ref->entry)->counts[t->slot], 1);
    return true;
  }
  ref->entry = table_enter(t, hash);
  if (!ref->entry)
    ref->own++;
  return ref->entry != 0;
}

/* A push to the idle stack; `is_idle` keeps an entry from being on it twice. */
static void idle_push(chantable_shared_s *s, uint32_t e) {
  entry_s *p = entry_at(s, e);
  if (atomic_exchange(&p->is_idle, 1))
    return;
  uint32_t top = atomic_load(&s->idle);
  do
    atomic_store(&p->idle_next, top);
  while (!atomic_compare_exchange_weak(&s->idle, &top, e));
}

bool chantable_remove(chantable_s *t, chanref_s *ref) {
  if (ref->own) {
    ref->own--;
    return false;
  }
  uint32_t e = ref->entry;
  uint32_t had = atomic_fetch_sub(&entry_at(t->shared, e)->counts[t->slot], 1);
  assert(had > 0);
  if (had > 1)
    return true;
  ref->entry = 0;
  RING_POINT("remove: zero");
  /* From here the entry may be gone or another channel's; who takes it off the
   * stack looks at its counts again. */
  if (!entry_sum(t->shared, e))
    idle_push(t->shared, e);
  return true;
}

void chantable_drop_slot(chantable_s *t, unsigned slot) {
  uint32_t high = atomic_load(&t->shared->high);
  for (uint32_t e = 1; e <= high; e++) {
    _Atomic uint32_t *count = &entry_at(t->shared, e)->counts[slot];
    if (atomic_load_explicit(count, memory_order_relaxed))
      atomic_store(count, 0);
  }
  shlock_forget(&t->shared->lock, slot);
  atomic_store(&t->shared->is_swept_next, 1);
}

bool chantable_is_stuck(chantable_s *t, uint64_t now_ms, uint64_t limit_ms,
                        int *slot, int32_t *tid) {
  return shlock_is_stuck(&t->shared->lock, &t->watch, now_ms, limit_ms, slot,
                         tid);
}

/* --- The holder of the store lock --- */

uint32_t chantable_find(const chantable_s *t, uint64_t hash) {
  return table_find(t->shared, hash);
}

void chantable_note(const chantable_s *t, uint32_t entry, uint64_t id) {
  entry_s *p = entry_at(t->shared, entry);
  uint64_t last = atomic_load_explicit(&p->last, memory_order_relaxed);
  if (last >= id)
    return;
  /* A death between the two leaves both equal; done again, both are right. */
  atomic_store_explicit(&p->before, last, memory_order_release);
  atomic_store_explicit(&p->last, id, memory_order_release);
}

void chantable_interest(const chantable_s *t, uint32_t entry,
                        const slotset_s *among, slotset_s *set) {
  entry_s *p = entry_at(t->shared, entry);
  for (unsigned w = 0; w < CHANTABLE_SLOTS_MAX / 64; w++)
    for (uint64_t left = among->bits[w]; left; left &= left - 1) {
      unsigned slot = w * 64 + (unsigned)__builtin_ctzll(left);
      if (atomic_load(&p->counts[slot]))
        slotset_add(set, slot);
    }
}
