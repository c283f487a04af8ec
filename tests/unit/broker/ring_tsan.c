/* ring_tsan.c - the ring under ThreadSanitizer: threads for workers, each with
 * a handle of its own on one mapping (core.md test 33).
 *
 * In processes the sanitizer sees nothing; in threads it sees every word that
 * two of them touch without an order. Criterion cannot run under it, so this is
 * cmocka. Without the sanitizer it is one more stress test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ring_support.h"

enum { WORKERS = 4 };

typedef struct {
  ring_s *r;
  unsigned slot;
  uint32_t each;
  int fault;
  uint32_t count, laps, next[WORKERS];
  uint64_t last_id;
} thread_s;

static _Atomic int is_over;

static void on_record(void *arg, const ring_record_s *rec) {
  thread_s *t = (thread_s *)arg;
  if (!record_is_whole(rec))
    t->fault = 3;
  if (rec->id <= t->last_id)
    t->fault = 4;
  if (rec->ttl < t->next[rec->kind])
    t->fault = 5;
  t->next[rec->kind] = rec->ttl + 1;
  t->last_id = rec->id;
  t->count++;
}

static void drain(thread_s *t) {
  uint64_t from;
  while (ring_read(t->r, SIZE_MAX, SIZE_MAX, on_record, t) < 0) {
    ring_lapped(t->r, &from, &t->last_id);
    t->laps++;
  }
}

static void *worker(void *arg) {
  thread_s *t = (thread_s *)arg;
  char body[1024];
  chanref_s refs[64];
  memset(refs, 0, sizeof refs);
  int fd = ring_join(t->r, t->slot);
  ring_watch_all(t->r, 1);
  for (uint32_t seq = 0; fd >= 0 && seq < t->each && !t->fault; seq++) {
    uint64_t hash = (seq * 7 + t->slot) % 64;
    size_t len = seq % 50 ? seq % 200 : 1024;
    ring_message_s m = message_of(t->r, VIEW_LIT("w"), t->slot, seq, body, len);
    ring_place_s p;
    m.hash = hash;
    if (refs[hash].entry || refs[hash].own)
      ring_unsubscribe(t->r, &refs[hash]);
    else
      ring_subscribe(t->r, hash, &refs[hash]);
    if (publish_s(t->r, NULL, &m, &p) < 0)
      t->fault = 2;
    drain(t);
    if (seq % 100 == 99 && !sleep_well(t->r, fd) && !t->laps)
      t->fault = 7;
  }
  if (fd < 0)
    t->fault = 1;
  return NULL;
}

/* What the master and a page of figures look at meanwhile. */
static void *onlooker(void *arg) {
  thread_s *t = (thread_s *)arg;
  int slot = -1;
  while (!atomic_load(&is_over)) {
    ring_marks_s m;
    uint64_t last, before;
    ring_marks(t->r, &m);
    if (m.stable > m.head || m.head > m.reserve)
      t->fault = 6;
    if (ring_lock_holder(t->r, now_ms(), 60000, &slot))
      t->fault = 8;
    if (ring_subscribers(t->r, m.head % 64, NULL) > WORKERS)
      t->fault = 9;
    if (chantable_last(ring_channels(t->r), 5, &last, &before) == 0 && last &&
        before >= last)
      t->fault = 10;
  }
  return NULL;
}

static void four_workers_and_an_onlooker_have_no_race(void **state) {
  (void)state;
  const ring_config_s config = {.size = 32 * 1024,
                                .message_max = 1024,
                                .workers = WORKERS,
                                .channels = 128};
  ring_s *r = ring_new(&config);
  assert_non_null(r);
  thread_s t[WORKERS + 1];
  pthread_t threads[WORKERS + 1];
  memset(t, 0, sizeof t);
  for (unsigned i = 0; i <= WORKERS; i++) {
    t[i].r = ring_share(r);
    t[i].slot = i;
    t[i].each = soak(3000, 200000);
    assert_non_null(t[i].r);
  }
  for (unsigned i = 0; i <= WORKERS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL,
                                    i < WORKERS ? worker : onlooker, &t[i]),
                     0);
  for (unsigned i = 0; i < WORKERS; i++)
    pthread_join(threads[i], NULL);
  atomic_store(&is_over, 1);
  pthread_join(threads[WORKERS], NULL);
  for (unsigned i = 0; i <= WORKERS; i++) {
    assert_int_equal(t[i].fault, 0);
    ring_free(t[i].r);
  }
  ring_free(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(four_workers_and_an_onlooker_have_no_race)};
  cmocka_set_message_output(CM_OUTPUT_TAP);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
