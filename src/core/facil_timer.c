/* facil_timer.c - user timers in a 4-ary heap, by due time, then by age.
 *
 * Invariant: a timer's on_finish runs exactly once, in every path. Timers made
 * before the fork are started in each worker. */
#include "core.h"
#include <errno.h>
#include <string.h>

typedef struct {
  int64_t id;
  uint64_t due_ms; /* 0: not started yet */
  uint32_t ms, reps;
  void (*task)(void *);
  void *arg;
  void (*on_finish)(void *);
  uint32_t place; /* in the heap */
  bool ended;     /* cancelled inside its own task */
} ticker_s;

static ticker_s **heap;
static uint32_t heap_count, heap_cap;
static int64_t last_id = -1;
static ticker_s *running;

static bool before(const ticker_s *a, const ticker_s *b) {
  return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->id < b->id;
}

static void set_at(uint32_t i, ticker_s *t) {
  heap[i] = t;
  t->place = i;
}

static void sift_up(uint32_t i) {
  ticker_s *t = heap[i];
  while (i && before(t, heap[(i - 1) / 4])) {
    set_at(i, heap[(i - 1) / 4]);
    i = (i - 1) / 4;
  }
  set_at(i, t);
}

static void sift_down(uint32_t i) {
  ticker_s *t = heap[i];
  for (;;) {
    uint32_t best = 0, first = 4 * i + 1;
    for (uint32_t c = first; c < first + 4 && c < heap_count; c++)
      if (!best || before(heap[c], heap[best]))
        best = c;
    if (!best || !before(heap[best], t))
      break;
    set_at(i, heap[best]);
    i = best;
  }
  set_at(i, t);
}

static int heap_push(ticker_s *t) {
  if (heap_count == heap_cap) {
    uint32_t cap = heap_cap ? heap_cap * 2 : 16;
    ticker_s **bigger = realloc(heap, cap * sizeof *bigger);
    if (!bigger)
      return -1;
    heap = bigger;
    heap_cap = cap;
  }
  set_at(heap_count++, t);
  sift_up(heap_count - 1);
  return 0;
}

static void heap_remove(uint32_t i) {
  ticker_s *last = heap[--heap_count];
  if (i == heap_count)
    return;
  set_at(i, last);
  sift_up(i);
  sift_down(last->place);
}

static void finish(ticker_s *t) {
  heap_remove(t->place);
  if (t->on_finish)
    t->on_finish(t->arg);
  free(t);
}

int64_t facil_run_every(uint32_t ms, uint32_t reps, void (*task)(void *),
                        void *arg, void (*on_finish)(void *)) {
  int error = !ms || !task ? EINVAL : 0;
  ticker_s *t = error ? NULL : calloc(1, sizeof *t);
  if (t) {
    *t = (ticker_s){.id = last_id + 1,
                    .due_ms = facil_now_ms() + ms,
                    .ms = ms,
                    .reps = reps,
                    .task = task,
                    .arg = arg,
                    .on_finish = on_finish};
    if (heap_push(t) == 0)
      return ++last_id;
    free(t);
  }
  if (on_finish)
    on_finish(arg);
  errno = error ? error : ENOMEM;
  return -1;
}

int facil_timer_cancel(int64_t id) {
  for (uint32_t i = 0; i < heap_count; i++) {
    ticker_s *t = heap[i];
    if (t->id != id || t->ended)
      continue;
    if (t == running)
      t->ended = true;
    else
      finish(t);
    return 0;
  }
  errno = ENOENT;
  return -1;
}

/* The next tick in step with the first; what a stall missed is skipped. */
static void schedule_next(ticker_s *t, uint64_t now) {
  t->due_ms += t->ms;
  if (t->due_ms <= now)
    t->due_ms += (now - t->due_ms) / t->ms * t->ms;
  sift_down(t->place);
}

bool timer_run(uint64_t now_ms) {
  int budget = 256;
  bool did = false;
  while (heap_count && heap[0]->due_ms <= now_ms && budget--) {
    ticker_s *t = heap[0];
    did = true;
    running = t;
    t->task(t->arg);
    running = NULL;
    if (t->ended || (t->reps && --t->reps == 0))
      finish(t);
    else
      schedule_next(t, now_ms);
  }
  return did;
}

int timer_next_due(uint64_t now_ms) {
  if (!heap_count)
    return -1;
  uint64_t due = heap[0]->due_ms;
  if (due <= now_ms)
    return 0;
  return due - now_ms > 60000 ? 60000 : (int)(due - now_ms);
}

void timer_start_all(uint64_t now_ms) {
  for (uint32_t i = 0; i < heap_count; i++)
    heap[i]->due_ms = now_ms + heap[i]->ms;
  for (uint32_t i = heap_count; i-- > 0;)
    sift_down(i);
}

/* In rounds: what is made in an on_finish is of the next one, and what makes
 * itself anew for ever is left for another run. */
void timer_cancel_all(void) {
  for (int round = 0; round < 16 && heap_count; round++) {
    ticker_s **old = heap;
    uint32_t n = heap_count;
    heap = NULL;
    heap_count = heap_cap = 0;
    for (uint32_t i = 0; i < n; i++) {
      if (old[i]->on_finish)
        old[i]->on_finish(old[i]->arg);
      free(old[i]);
    }
    free(old);
  }
}
