/* chantable_test.c - the channel table against a model, full, collided, churned
 * by four processes, and after deaths at each step of its changes. */
#include "ring_support.h"
#include <criterion/criterion.h>

enum { SLOTS = 5 };

static chantable_s table_make(uint32_t entries, unsigned slot) {
  chantable_s t;
  void *mem = shared_memory(chantable_bytes(entries, SLOTS));
  cr_assert_not_null(mem);
  cr_assert_eq(chantable_init(mem, entries, SLOTS), 0);
  chantable_open(&t, mem, slot);
  return t;
}

static chantable_s table_of(const chantable_s *t, unsigned slot) {
  chantable_s o;
  chantable_open(&o, t->shared, slot);
  return o;
}

/* Whether the committer sees interest of `slot`. */
static bool is_interested(const chantable_s *t, uint64_t hash, unsigned slot) {
  slotset_s all = {{31}}, set = {{0}};
  uint32_t entry = chantable_find(t, hash);
  if (entry)
    chantable_interest(t, entry, &all, &set);
  return slotset_has(&set, slot);
}

Test(chantable, counts_of_all_slots_are_summed_and_seen_apart) {
  chantable_s a = table_make(64, 0), b = table_of(&a, 4);
  chanref_s ra = {0}, rb = {0};
  cr_assert_eq(chantable_subscribers(&a, 7), 0);
  for (int i = 0; i < 3; i++)
    cr_assert(chantable_add(&a, 7, &ra));
  cr_assert(!is_interested(&b, 7, 4));
  cr_assert(chantable_add(&b, 7, &rb));
  cr_assert_eq(ra.entry, rb.entry);
  cr_assert_eq(chantable_subscribers(&b, 7), 4);
  cr_assert(is_interested(&a, 7, 0) && is_interested(&a, 7, 4));
  cr_assert(!is_interested(&a, 7, 1));
  cr_assert(chantable_remove(&a, &ra));
  cr_assert_eq(chantable_subscribers(&b, 7), 3);
}

Test(chantable, an_entry_without_subscribers_is_given_back) {
  chantable_s a = table_make(64, 0), b = table_of(&a, 1);
  chanref_s ra = {0}, rb = {0};
  cr_assert(chantable_add(&a, 7, &ra));
  cr_assert(chantable_add(&b, 7, &rb));
  cr_assert(chantable_remove(&a, &ra));
  cr_assert_eq(ra.entry, 0);
  cr_assert(!chantable_is_littered(&a));
  cr_assert(chantable_remove(&b, &rb));
  cr_assert(chantable_is_littered(&a));
  chantable_reap(&a);
  cr_assert(!chantable_is_littered(&a));
  cr_assert_eq(chantable_used(&a), 0);
  cr_assert_eq(chantable_find(&a, 7), 0);
}

Test(chantable, an_entry_that_is_wanted_again_before_the_reap_stays) {
  chantable_s a = table_make(64, 0);
  chanref_s ref = {0};
  cr_assert(chantable_add(&a, 7, &ref));
  cr_assert(chantable_remove(&a, &ref));
  cr_assert(chantable_add(&a, 7, &ref));
  chantable_reap(&a);
  cr_assert_eq(chantable_subscribers(&a, 7), 1);
  cr_assert_eq(chantable_used(&a), 1);
}

Test(chantable, names_in_one_bucket_are_kept_apart) { /* core.md test 38 */
  enum { N = 2000 };
  static chanref_s refs[N];
  chantable_s a = table_make(4096, 0);
  for (uint64_t i = 0; i < N; i++)
    cr_assert(chantable_add(&a, i << 32 | 5, &refs[i]));
  for (uint64_t i = 0; i < N; i += 3)
    cr_assert(chantable_remove(&a, &refs[i]));
  chantable_reap(&a);
  for (uint64_t i = 0; i < N; i++)
    cr_assert_eq(chantable_subscribers(&a, i << 32 | 5), i % 3 != 0);
  cr_assert_eq(chantable_used(&a), N - (N + 2) / 3);
}

Test(chantable, what_a_full_table_cannot_take_is_counted_by_the_worker) {
  static chanref_s refs[65];
  chantable_s a = table_make(64, 0);
  for (uint64_t i = 0; i < 64; i++)
    cr_assert(chantable_add(&a, i, &refs[i]));
  cr_assert(!chantable_add(&a, 64, &refs[64]));
  cr_assert(!chantable_add(&a, 64, &refs[64]));
  cr_assert_eq(refs[64].own, 2);
  cr_assert(chantable_add(&a, 3, &refs[3]), "a channel that is there");
  cr_assert(chantable_remove(&a, &refs[9]));
  chantable_reap(&a);
  cr_assert(chantable_add(&a, 64, &refs[64]), "there is room now");
  cr_assert_eq(chantable_subscribers(&a, 64), 1);
  cr_assert(!chantable_remove(&a, &refs[64]));
  cr_assert(!chantable_remove(&a, &refs[64]));
  cr_assert_eq(refs[64].own, 0);
  cr_assert(chantable_remove(&a, &refs[64]));
  cr_assert_eq(chantable_subscribers(&a, 64), 0);
}

Test(chantable, an_id_that_is_noted_twice_changes_nothing) {
  chantable_s a = table_make(64, 0);
  chanref_s ref = {0};
  uint64_t last, before;
  cr_assert(chantable_add(&a, 7, &ref));
  cr_assert_eq(chantable_last(&a, 7, &last, &before), 0);
  cr_assert_eq(last, 0);
  chantable_note(&a, ref.entry, 100);
  chantable_note(&a, ref.entry, 105);
  chantable_note(&a, ref.entry, 105);
  chantable_note(&a, ref.entry, 100);
  cr_assert_eq(chantable_last(&a, 7, &last, &before), 0);
  cr_assert_eq(last, 105);
  cr_assert_eq(before, 100);
  cr_assert(chantable_remove(&a, &ref));
  chantable_reap(&a);
  cr_assert(chantable_add(&a, 8, &ref));
  cr_assert_eq(chantable_last(&a, 8, &last, &before), 0);
  cr_assert_eq(last, 0, "a new channel has no ids of the old one");
}

Test(chantable, ten_thousand_channels_touch_at_most_100_bytes_each) {
  enum { N = 10000, ENTRIES = 65536 };
  static chanref_s refs[N];
  static unsigned char pages[4096];
  chantable_s a = table_make(ENTRIES, 0);
  size_t bytes = chantable_bytes(ENTRIES, SLOTS), touched = 0;
  uint64_t hash = 1;
  for (int i = 0; i < N; i++) {
    hash = hash * 6364136223846793005u + 1442695040888963407u;
    cr_assert(chantable_add(&a, hash ^ hash >> 33, &refs[i]));
  }
  cr_assert_leq((bytes + 4095) / 4096, sizeof pages);
  cr_assert_eq(mincore(a.shared, bytes, pages), 0);
  for (size_t i = 0; i < (bytes + 4095) / 4096; i++)
    touched += (pages[i] & 1) * 4096u;
  cr_assert_leq(touched / N, 100, "%zu bytes each", touched / N);
}

static chantable_s *moved_table;
static chanref_s moved_from, moved_to;

/* The entry at which a look-up stands becomes another bucket's. */
static void moving_hook(const char *point) {
  if (strcmp(point, "find: step"))
    return;
  ring_hook = NULL;
  chantable_remove(moved_table, &moved_from);
  chantable_reap(moved_table);
  if (!chantable_add(moved_table, 6, &moved_to))
    abort();
}

Test(chantable, a_look_up_whose_entry_moves_away_is_made_again) {
  chantable_s a = table_make(64, 0);
  chanref_s wanted = {0};
  moved_table = &a;
  cr_assert(chantable_add(&a, 1ull << 32 | 5, &wanted));
  cr_assert(chantable_add(&a, 2ull << 32 | 5, &moved_from), "before it");
  uint32_t entry = moved_from.entry;
  ring_hook = moving_hook;
  cr_assert_eq(chantable_subscribers(&a, 1ull << 32 | 5), 1);
  cr_assert_eq(moved_to.entry, entry);
}

/* --- Churn --- */

enum { HASHES = 300 };
typedef struct {
  uint32_t model[SLOTS][HASHES];
  _Atomic uint32_t running;
  uint32_t rounds, is_clearing;
  const char *point;
  unsigned after;
  chantable_s *table;
} churn_s;

/* Few buckets, so that chains are long and neighbours come and go. */
static uint64_t hash_of(unsigned i) {
  return (uint64_t)i << 40 | i % 7;
}

static int churn_step(chantable_s *t, uint32_t *model, chanref_s *refs,
                      unsigned i, bool adds) {
  if (adds || !model[i]) {
    if (!chantable_add(t, hash_of(i), &refs[i]))
      return 2;
    model[i]++;
  } else {
    if (!chantable_remove(t, &refs[i]))
      return 3;
    model[i]--;
  }
  /* Others may subscribe too, so at least ours must be seen. */
  return chantable_subscribers(t, hash_of(i)) < model[i] ? 4 : 0;
}

static int churning(ring_s *unused, unsigned slot, void *arg) {
  (void)unused;
  churn_s *c = (churn_s *)arg;
  static chanref_s refs[HASHES];
  chantable_s t = table_of(c->table, slot);
  unsigned rnd = slot * 77 + 1;
  int rc = 0;
  if (c->point && slot == 1)
    trap_at(c->point, c->after, SIGKILL);
  for (uint32_t n = 0; n < c->rounds && !rc; n++) {
    rnd = rnd * 1664525u + 1013904223u;
    shlock_turn(&t.user);
    rc = churn_step(&t, c->model[slot], refs, (rnd >> 8) % HASHES,
                    rnd >> 30 == 0);
    /* Slot 0 is the holder of the store lock; slot 1 too, when it is to die
     * in a reap, and then slot 0 is not. */
    if (slot == (c->point != NULL) && n % 16 == 0) {
      unsigned i = (rnd >> 4) % HASHES;
      if (is_interested(&t, hash_of(i), slot) != (c->model[slot][i] > 0))
        rc = 5;
      chantable_reap(&t);
    }
  }
  for (unsigned i = 0; c->is_clearing && i < HASHES; i++)
    while (c->model[slot][i]) {
      chantable_remove(&t, &refs[i]);
      c->model[slot][i]--;
    }
  return rc;
}

static void churn_run(churn_s *c, unsigned workers) {
  pid_t pids[4];
  for (unsigned i = 0; i < workers; i++)
    pids[i] = spawn(churning, NULL, i, c);
  for (unsigned i = 0; i < workers; i++) {
    int rc = reap(pids[i]);
    if (c->point && i == 1) {
      cr_assert_eq(rc, 1000 + SIGKILL, "%s", c->point);
      chantable_drop_slot(c->table, 1);
      memset(c->model[1], 0, sizeof c->model[1]);
      continue;
    }
    cr_assert_eq(rc, 0, "worker %u", i);
  }
}

static void churn_check(churn_s *c) {
  for (unsigned i = 0; i < HASHES; i++) {
    uint64_t sum = 0;
    for (unsigned s = 0; s < SLOTS; s++)
      sum += c->model[s][i];
    cr_assert_eq(chantable_subscribers(c->table, hash_of(i)), sum);
    for (unsigned s = 0; s < SLOTS; s++)
      cr_assert_eq(is_interested(c->table, hash_of(i), s), c->model[s][i] > 0);
  }
}

static void all_rooms_are_free(chantable_s *t, uint32_t entries) {
  static chanref_s refs[4096];
  memset(refs, 0, sizeof refs);
  for (unsigned i = 0; i < SLOTS; i++)
    chantable_drop_slot(t, i);
  chantable_reap(t);
  cr_assert_eq(chantable_used(t), 0);
  for (uint32_t i = 0; i < entries; i++)
    cr_assert(chantable_add(t, i + 1000000, &refs[i]), "room %u", i);
}

Test(chantable, four_processes_that_churn_leave_exact_counts, .timeout = 600) {
  churn_s *c = shared_memory(sizeof *c);
  chantable_s t = table_make(HASHES, 0);
  c->table = &t;
  c->rounds = soak(100000, 5000000);
  churn_run(c, 4);
  churn_check(c);
  chantable_reap(&t);
  churn_check(c);
  all_rooms_are_free(&t, HASHES);
}

Test(chantable, after_all_have_left_the_table_is_empty, .timeout = 600) {
  churn_s *c = shared_memory(sizeof *c);
  chantable_s t = table_make(HASHES, 0);
  c->table = &t;
  c->rounds = 20000;
  c->is_clearing = 1;
  churn_run(c, 4);
  churn_check(c);
  chantable_reap(&t);
  cr_assert_eq(chantable_used(&t), 0);
}

Test(chantable, a_worker_killed_at_any_step_leaves_counts_and_rooms_exact,
     .timeout = 600) {
  static const char *points[] = {
      "lock: taken", "add: locked",    "add: filled",
      "add: linked", "add: counted",   "remove: zero",
      "reap: begun", "reap: unlinked", "lock: wiped"};
  for (unsigned p = 0; p < sizeof points / sizeof *points; p++)
    for (unsigned after = 0; after < soak(3, 15); after++) {
      churn_s *c = shared_memory(sizeof *c);
      chantable_s t = table_make(HASHES, 0);
      c->table = &t;
      c->rounds = 3000;
      c->point = points[p];
      c->after = after * 7;
      churn_run(c, 3);
      cr_assert_eq(c->model[1][0], 0);
      churn_check(c);
      all_rooms_are_free(&t, HASHES);
      munmap(c, sizeof *c);
    }
}
