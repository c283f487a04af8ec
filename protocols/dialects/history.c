/* history.c - what is kept, as JSON: at once, or when there is something (a
 * long poll).
 *
 * {"messages":[…],"cursor":N,"gap":null or {"from","to"},"more":false}; the
 * cursor is where the next request goes on. Invariant: what is above the cursor
 * that was asked for and not in the answer is above the answer's cursor, or in
 * its gap. */
#include "json_text.h"
#include "replay.h"
#include "subscribe.h"
#include <errno.h>
#include <stdlib.h>

#define BYTES_MAX                                                              \
  (1u << 20) /* of messages in one answer, but for the first                   \
              */

#define SWEEP_MS 1000u

static void reply(http_s *h, const replay_s *r) {
  char *body = malloc(replay_json_max(r) + 2), *end = body;
  if (!body) {
    http_problem(h, 503, "There is no memory now.", VIEW_LIT(""));
    return;
  }
  *end++ = '{';
  end = replay_json_write(end, r);
  *end++ = '}';
  http_reply(h, .status = 200, .type = VIEW_LIT("application/json"),
             .body = view_of(body, (size_t)(end - body)),
             .headers = VIEW_LIT("Cache-Control: no-store\r\n"));
  free(body);
}

typedef enum { ANSWERED, NOTHING, NOTHING_SO_FAR } answer_e;

/* Answered, unless there is nothing and `waits`; then *since has moved to where
 * there was nothing up to. */
static answer_e answer_now(http_s *h, const subscribe_s *ask, uint64_t *since,
                           bool waits) {
  replay_s r = {.is_new = ask->since.what == SINCE_LAST};
  engine_limit_s limit = {ask->limit, BYTES_MAX};
  answer_e answer = ANSWERED;
  if (replay_read(ask->names, ask->count, *since, limit, &r) < 0) {
    http_problem(h, 503, "The history cannot be read now.", VIEW_LIT(""));
  } else if (waits && !r.count && !r.gap_to) {
    answer = r.has_more ? NOTHING_SO_FAR : NOTHING;
    *since = r.cursor;
  } else {
    reply(h, &r);
  }
  replay_free(&r);
  return answer;
}

/* ---- long polls
 * ------------------------------------------------------------------ */

typedef struct {
  waiter_s waiter; /* first */
  list_s link;     /* of all that wait */
  http_s *http;
  uint64_t since;
  int64_t timer, again; /* of the end; to read on */
  subscribe_s ask;
  char names[]; /* the bytes of ask's */
} poll_s;

static list_s polls = {&polls, &polls};

static void poll_free(poll_s *p) {
  waiter_fini(&p->waiter);
  list_remove(&p->link);
  if (p->timer >= 0)
    facil_timer_cancel(p->timer);
  if (p->again >= 0)
    facil_timer_cancel(p->again);
  free(p);
}

static void on_again(void *arg);

/* Look for something, now and, where much is to be searched, in later turns.
 * False: it was answered. */
static bool look(poll_s *p) {
  answer_e answer = answer_now(p->http, &p->ask, &p->since, true);
  if (answer == NOTHING_SO_FAR && p->again < 0)
    p->again = facil_run_every(1, 1, on_again, p, NULL);
  return answer != ANSWERED;
}

static void on_news(waiter_s *w) {
  poll_s *p = (poll_s *)w;
  if (!look(p))
    poll_free(p);
}

static void on_again(void *arg) {
  poll_s *p = arg;
  p->again = -1; /* it ends by itself */
  on_news(&p->waiter);
}

static void on_timeout(void *arg) {
  poll_s *p = arg;
  (void)answer_now(p->http, &p->ask, &p->since, false);
  p->timer = -1; /* it ends by itself */
  poll_free(p);
}

static void answer_drained(http_s *h) {
  http_reply(h, .status = 204, .headers = VIEW_LIT("Retry-After: 1\r\n"));
}

void history_notice(void) {
  while (!list_empty(&polls)) {
    poll_s *p = FACIL_CONTAINER(polls.next, poll_s, link);
    answer_drained(p->http);
    poll_free(p);
  }
}

/* Those whose connection has gone are not waited for. */
static int64_t sweeper = -1;

static void sweep(void *unused) {
  (void)unused;
  for (list_s *l = polls.next, *next; l != &polls; l = next) {
    poll_s *p = FACIL_CONTAINER(l, poll_s, link);
    next = l->next;
    if (http_uuid(p->http) >= 0)
      continue;
    answer_drained(p->http);
    poll_free(p);
  }
  if (!list_empty(&polls) || sweeper < 0)
    return;
  facil_timer_cancel(sweeper);
  sweeper = -1;
}

/* Without a sweeper they are gone at the end of their wait. */
static void sweep_too(poll_s *p) {
  list_push(&polls, &p->link);
  if (sweeper < 0)
    sweeper = facil_run_every(SWEEP_MS, 0, sweep, NULL, NULL);
}

static poll_s *poll_new(http_s *h, const subscribe_s *ask) {
  size_t bytes = 0;
  for (size_t i = 0; i < ask->count; i++)
    bytes += ask->names[i].len;
  poll_s *p = malloc(sizeof *p + bytes);
  if (!p)
    return NULL;
  *p = (poll_s){.http = h, .ask = *ask, .timer = -1, .again = -1};
  waiter_init(&p->waiter, on_news);
  list_init(&p->link);
  char *at = p->names;
  for (size_t i = 0; i < ask->count; i++) {
    p->ask.names[i] = view_of(at, ask->names[i].len);
    at = json_raw(at, ask->names[i]);
  }
  return p;
}

/* Wait first, then look: what comes in between is seen by the one or the other.
 */
static void wait_for_news(http_s *h, const subscribe_s *ask) {
  poll_s *p = poll_new(h, ask);
  uint64_t now = 0, cursor = 0;
  bool fine = p != NULL;
  for (size_t i = 0; fine && i < ask->count; i++) {
    fine = waiter_add(&p->waiter, p->ask.names[i], &cursor) == 0;
    if (!now)
      now = cursor;
  }
  if (fine) {
    p->since = since_cursor(&ask->since, ask->names, ask->count, now);
    if (!look(p)) {
      poll_free(p);
      return;
    }
    p->ask.since.what = SINCE_ID; /* from here on what it misses is a gap */
    p->timer = facil_run_every((uint32_t)ask->wait_ms, 1, on_timeout, p, NULL);
    fine = p->timer >= 0;
  }
  if (fine) {
    sweep_too(p);
    return;
  }
  if (p)
    poll_free(p);
  http_problem(h, 503, "There is no memory now.", VIEW_LIT(""));
}

void history_start(http_s *h, subscribe_s *ask) {
  uint64_t most = dialect_settings.replay_limit;
  if (!ask->limit || ask->limit > most)
    ask->limit = most;
  if (ask->wait_ms > dialect_settings.poll_max_wait_ms)
    ask->wait_ms = dialect_settings.poll_max_wait_ms;
  if (!ask->count) {
    http_problem(h, 400, "The query names no channel.", VIEW_LIT(""));
  } else if (ask->wait_ms && facil_is_draining()) {
    answer_drained(h);
  } else if (ask->wait_ms) {
    wait_for_news(h, ask);
  } else {
    uint64_t since =
        since_cursor(&ask->since, ask->names, ask->count, pubsub_delivered());
    (void)answer_now(h, ask, &since, false);
  }
}
