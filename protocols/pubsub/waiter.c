/* waiter.c - whoever waits for one message: a long poll.
 *
 * A waiter is a subscriber without a cursor: it is called once, in a later
 * turn, when something comes on one of its channels, and then reads for itself.
 * Invariant: while it waits, its channels are watched, so none passes unseen.
 */
#include "facil/defer.h"
#include "pubsub_internal.h"
#include <errno.h>

typedef struct wait_s {
  list_s link; /* of the channel's waiters */
  struct wait_s *next;
  waiter_s *waiter;
  channel_s *channel;
} wait_s;

static list_s told = {&told, &told};

void waiter_init(waiter_s *w, void (*on_news)(waiter_s *w)) {
  *w = (waiter_s){.on_news = on_news};
  list_init(&w->told);
}

int waiter_add(waiter_s *w, view_s name, uint64_t *cursor) {
  wait_s *wait = malloc(sizeof *wait);
  channel_s *c = wait ? channel_get(name, engine->hash(name)) : NULL;
  if (!c) {
    free(wait);
    errno = ENOMEM;
    return -1;
  }
  *cursor = channel_watch(c);
  *wait = (wait_s){.next = w->waits, .waiter = w, .channel = c};
  list_push(&c->waiters, &wait->link);
  w->waits = wait;
  return 0;
}

void waiter_fini(waiter_s *w) {
  list_remove(&w->told);
  for (wait_s *wait = w->waits, *next; wait; wait = next) {
    next = wait->next;
    list_remove(&wait->link);
    channel_unwatch(wait->channel);
    channel_drop(wait->channel);
    free(wait);
  }
  w->waits = NULL;
}

static void call_told(void *unused, void *unused_too) {
  (void)unused, (void)unused_too;
  list_s *l;
  while ((l = list_shift(&told))) {
    waiter_s *w = FACIL_CONTAINER(l, waiter_s, told);
    w->on_news(w);
  }
}

void waiters_tell(channel_s *c) {
  if (list_empty(&c->waiters))
    return;
  bool is_first = list_empty(&told);
  for (list_s *l = c->waiters.next; l != &c->waiters; l = l->next) {
    waiter_s *w = FACIL_CONTAINER(l, wait_s, link)->waiter;
    if (list_empty(&w->told))
      list_push(&told, &w->told);
  }
  if (is_first && defer(call_told, NULL, NULL) < 0)
    call_told(NULL, NULL);
}
