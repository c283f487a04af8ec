/* pubsub.c - subscriptions and the fan-out.
 *
 * A reader's place in a run is all that is known of it: pubsub_deliver makes
 * the tails of a channel grow and says so to the set of its readers; when a
 * reader's connection can write, reader_ready offers what lies between its
 * place and the end, and reader_sent moves the place. Invariant: a place stands
 * between two frames, and moves forward only by frames that have left (or whose
 * rest the connection keeps) and by gaps that were told. */
#include "pubsub_internal.h"
#include <errno.h>

const engine_s *engine;
pubsub_settings_s pubsub_settings;
static size_t subscription_count;
static uint64_t delivered_id; /* everything up to it has been delivered here */

void pubsub_set(const engine_s *e, const pubsub_settings_s *s) {
  engine = e;
  pubsub_settings = *s;
  tail_limits(s->tail_size, s->tail_total);
}

int pubsub_publish_group(const message_s *group, size_t n,
                         void (*done)(void *arg, const published_s *result),
                         void *arg) {
  return engine->publish(group, n, done, arg);
}

const engine_s *pubsub_engine(void) {
  return engine;
}

int pubsub_publish(const message_s *message,
                   void (*done)(void *arg, const published_s *result),
                   void *arg) {
  return engine->publish(message, 1, done, arg);
}

/* ---- delivery ---------------------------------------------------------- */

static void deliver(channel_s *c, const message_s *m) {
  for (run_s *run = &c->first; run; run = run->next)
    if (run->readers.count) {
      tail_append(run, m);
      run->caught = 0; /* it is ahead of them all */
      facil_set_ready(&run->readers);
    }
  c->last_id = m->id;
  waiters_tell(c);
}

void pubsub_deliver(const message_s *m) {
  delivered_id = m->id;
  channel_s *c = channel_find(m->channel, m->hash);
  if (c)
    deliver(c, m);
  pattern_each_match(m, deliver);
}

bool pubsub_can_take(void) {
  return tail_can_grow();
}

void pubsub_turn(void) {
  tail_turn();
  catchup_forget();
}

/* ---- where a reader stands --------------------------------------------- */

static bool has_news(const subscription_s *s) {
  return s->at != s->run->end;
}

static void arrive(subscription_s *s, uint64_t at, uint64_t id) {
  run_s *run = s->run;
  s->at = at;
  s->cursor = id;
  if (at == run->end && ++run->caught == run->readers.count)
    tail_read_by_all(run);
}

/* It lacks more than the tail keeps. */
static bool is_lost(const subscription_s *s) {
  return s->at < tail_start(s->run);
}

bool reader_overlaps(const reader_s *r) {
  const subscription_s *s = r->count > 1 ? r->subs : NULL;
  while (s && !s->run->channel->is_pattern)
    s = s->next;
  return s != NULL;
}

static void settle(subscription_s *s, bool is_welcome) {
  run_s *run = s->run;
  if (s->at == run->end)
    run->caught--;
  s->at = 0;
  if (is_welcome && s->cursor >= tail_trimmed_id(run))
    arrive(s, tail_place(run, s->cursor), s->cursor);
}

/* Tails show what comes twice only where all stand behind the same id. */
void reader_settle(const reader_s *r, subscription_s *s) {
  settle(s, s->cursor >= r->cursor || !reader_overlaps(r));
}

/* What the reader lacks is kept nowhere: it goes on from what is left. */
static bool tell_gap(reader_s *r, subscription_s *s) {
  uint64_t start = tail_start(s->run);
  if (!is_lost(s) || s->run->channel->keeps)
    return false;
  settle(s, true); /* it may have come back to what the tail keeps, or to now */
  if (!is_lost(s))
    return false;
  uint64_t from = s->cursor + 1, to = tail_trimmed_id(s->run);
  arrive(s, start, to);
  r->kind->on_gap(r, channel_name(s->run->channel), from, to, r->was_ready);
  return true;
}

static bool tell_gaps(reader_s *r) {
  bool told = false;
  for (subscription_s *s = r->subs, *next; s; s = next) {
    next = s->next;
    told |= tell_gap(r, s);
  }
  return told;
}

/* ---- what to offer ----------------------------------------------------- */

typedef struct {
  subscription_s *sub;
  uint64_t from, to; /* places */
  uint64_t id;       /* of the last frame before `to` */
  bool skips;        /* frames that this reader does not get */
} part_s;

/* The subscription whose next message is the oldest, and the id up to which it
 * goes before all others. */
static subscription_s *oldest(const reader_s *r, const part_s *parts, int n,
                              uint64_t *until) {
  subscription_s *best = NULL;
  uint64_t best_id = 0;
  *until = UINT64_MAX;
  for (subscription_s *s = r->subs; s; s = s->next) {
    uint64_t at = s->at;
    for (int i = 0; i < n; i++)
      if (parts[i].sub == s)
        at = parts[i].to;
    if (at == s->run->end)
      continue;
    uint64_t id = tail_frame(s->run, at)->id;
    if (!best || id < best_id) {
      if (best)
        *until = best_id - 1;
      best = s;
      best_id = id;
    } else if (id <= *until) {
      *until = id - 1;
    }
  }
  return best;
}

/* From `at` on all frames that are of one sort (for this reader, or skipped),
 * no newer than `until`, and that lie together. */
static part_s part_from(const reader_s *r, subscription_s *s, uint64_t at,
                        uint64_t until, uint64_t last) {
  const frame_s *f = tail_frame(s->run, at);
  /* An id that came by a channel does not come by a pattern once more. */
  bool skips = f->origin == r->uuid || f->id == last;
  part_s part = {s, at, f->end, f->id, skips};
  uint64_t limit = at + tail_piece(s->run, at, s->run->end).len;
  while (part.to < limit) {
    f = tail_next(s->run, f);
    if (f->id > until || (f->origin == r->uuid) != skips || f->id == last)
      break;
    part.to = f->end;
    part.id = f->id;
  }
  return part;
}

/* The next parts for a reader, in order of id. */
static int plan(const reader_s *r, part_s *parts, int max) {
  uint64_t last = reader_overlaps(r) ? r->cursor : 0;
  int n = 0;
  while (n < max) {
    uint64_t until, at;
    subscription_s *s = oldest(r, parts, n, &until);
    if (!s)
      break;
    at = s->at;
    for (int i = 0; i < n; i++)
      if (parts[i].sub == s)
        at = parts[i].to;
    parts[n] = part_from(r, s, at, until, last);
    if (reader_overlaps(r))
      last = parts[n].id;
    n++;
  }
  return n;
}

/* One subscription, and nothing that it does not get: the pieces of its tail as
 * they lie. */
static bool is_simple(const reader_s *r) {
  return r->count == 1 && !tail_has_origins(r->subs->run);
}

static void offer_simple(reader_s *r) {
  const subscription_s *s = r->subs;
  struct iovec iov[SOCK_OFFER_MAX];
  facil_buf_s *owner[SOCK_OFFER_MAX];
  int n = 0;
  for (uint64_t at = s->at; at != s->run->end && n < SOCK_OFFER_MAX; n++) {
    piece_s p = tail_piece(s->run, at, s->run->end);
    iov[n] = (struct iovec){(void *)(uintptr_t)p.data, p.len};
    owner[n] = p.owner;
    at += p.len;
  }
  if (n && sock_offer(r->uuid, iov, owner, n) < 0)
    sock_abort(r->uuid, "offer");
}

static void offer_plan(reader_s *r) {
  part_s parts[SOCK_OFFER_MAX];
  struct iovec iov[SOCK_OFFER_MAX];
  facil_buf_s *owner[SOCK_OFFER_MAX];
  int n = plan(r, parts, SOCK_OFFER_MAX), offered = 0;
  for (int i = 0; i < n; i++) {
    if (parts[i].skips)
      continue;
    piece_s p = tail_piece(parts[i].sub->run, parts[i].from, parts[i].to);
    iov[offered] = (struct iovec){(void *)(uintptr_t)p.data, p.len};
    owner[offered++] = p.owner;
  }
  if (offered) {
    if (sock_offer(r->uuid, iov, owner, offered) < 0)
      sock_abort(r->uuid, "offer");
  } else if (n) { /* only what it does not get: step over it */
    (void)reader_sent(r, 0);
  }
}

static subscription_s *first_lost(const reader_s *r) {
  subscription_s *s = r->subs;
  while (s && !is_lost(s))
    s = s->next;
  return s;
}

void reader_ready(reader_s *r) {
  if (!r->count)
    return;
  if (tell_gaps(r)) { /* the gap leaves first */
    sock_want_ready(r->uuid);
    return;
  }
  subscription_s *lost = first_lost(r);
  if (lost) {
    catchup_ready(r, lost);
    return;
  }
  r->was_ready = true;
  if (r->count == 1 && !has_news(r->subs))
    return;
  if (is_simple(r))
    offer_simple(r);
  else
    offer_plan(r);
}

/* The highest id that was sent, whatever the channel. */
static void merge_cursor(reader_s *r, uint64_t id) {
  if (id > r->cursor)
    r->cursor = id;
}

/* `sent` bytes from `at` on have left: step to the end of the frame that they
 * reach into. Returns the bytes of it that have not left. */
static size_t advance(reader_s *r, subscription_s *s, uint64_t at,
                      size_t sent) {
  run_s *run = s->run;
  uint64_t to = at + sent;
  if (!sent)
    return 0;
  const frame_s *f = tail_frame(run, to - 1);
  if (to == run->end) {
    merge_cursor(r, r->is_merged ? run->channel->last_id : f->id);
    arrive(s, to, run->channel->last_id);
    return 0;
  }
  arrive(s, f->end, f->id);
  merge_cursor(r, f->id);
  return (size_t)(f->end - to);
}

static size_t sent_plan(reader_s *r, size_t sent) {
  part_s parts[SOCK_OFFER_MAX];
  int n = plan(r, parts, SOCK_OFFER_MAX);
  for (int i = 0; i < n; i++) {
    part_s *p = &parts[i];
    size_t len = (size_t)(p->to - p->from);
    if (!p->skips && sent < len) {
      if (sent)
        return advance(r, p->sub, p->from, sent);
      return 0;
    }
    arrive(p->sub, p->to, p->id);
    merge_cursor(r, p->id);
    if (!p->skips)
      sent -= len;
  }
  return 0;
}

size_t reader_sent(reader_s *r, size_t sent) {
  size_t rest;
  if (!r->count)
    return 0;
  if (r->slice)
    return catchup_sent(r, sent);
  if (is_simple(r)) {
    rest = advance(r, r->subs, r->subs->at, sent);
    if (r->subs->at != r->subs->run->end)
      sock_want_ready(r->uuid);
    return rest;
  }
  rest = sent_plan(r, sent);
  for (subscription_s *s = r->subs; s; s = s->next)
    if (has_news(s)) {
      sock_want_ready(r->uuid);
      break;
    }
  return rest;
}

/* ---- subscribing ------------------------------------------------------- */

void reader_init(reader_s *r, intptr_t uuid, const reader_kind_s *kind) {
  *r = (reader_s){.kind = kind, .uuid = uuid};
}

static subscription_s *find(const reader_s *r, view_s channel) {
  subscription_s *s = r->subs;
  while (s && !view_eq(channel_name(s->run->channel), channel))
    s = s->next;
  return s;
}

static subscription_s *subscription_new(reader_s *r) {
  if (!r->first.run)
    return &r->first;
  return calloc(1, sizeof(subscription_s));
}

static void subscription_free(reader_s *r, subscription_s *s) {
  if (s == &r->first)
    s->run = NULL;
  else
    free(s);
}

static int join(reader_s *r, subscription_s *s, channel_s *c, uint64_t cursor) {
  run_s *run = run_get(c, r->kind);
  if (!run)
    return -1;
  *s = (subscription_s){.member = {.uuid = r->uuid},
                        .run = run,
                        .next = r->subs,
                        .at = run->end,
                        .start = cursor,
                        .cursor = cursor};
  if (facil_set_add(&run->readers, &s->member) < 0) {
    s->run = NULL;
    return -1;
  }
  run->caught++;
  if (!r->count)
    r->cursor = r->is_merged ? cursor : 0; /* nothing was sent yet */
  r->subs = s;
  r->count++;
  subscription_count++;
  return 0;
}

/* Count first, then take what is published so far, then let join: whatever
 * begins after the subscriber was answered finds the count. */
uint64_t channel_watch(channel_s *c) {
  uint64_t id =
      c->is_pattern ? engine->watch_all() : engine->watch(c->hash, &c->ref);
  if (id > c->last_id)
    c->last_id = id;
  return id;
}

void channel_unwatch(channel_s *c) {
  if (c->is_pattern)
    engine->unwatch_all();
  else
    engine->unwatch(c->hash, &c->ref);
}

int reader_subscribe(reader_s *r, view_s name, uint64_t *cursor) {
  subscription_s *s = find(r, name);
  if (s) {
    *cursor = s->cursor;
    errno = EEXIST;
    return -1;
  }
  if (r->count >= pubsub_settings.subscriptions_max) {
    errno = ENOSPC;
    return -1;
  }
  uint64_t hash = engine->hash(name);
  channel_s *c = channel_get(name, hash);
  if (!c) {
    errno = ENOMEM;
    return -1;
  }
  uint64_t id = channel_watch(c);
  s = subscription_new(r);
  if (s && join(r, s, c, id) == 0) {
    *cursor = id;
    return 0;
  }
  if (s)
    subscription_free(r, s);
  channel_unwatch(c);
  channel_drop(c);
  errno = ENOMEM;
  return -1;
}

static void leave(reader_s *r, subscription_s *s) {
  run_s *run = s->run;
  channel_s *c = run->channel;
  if (s->at == run->end)
    run->caught--;
  facil_set_remove(&run->readers, &s->member);
  channel_unwatch(c);
  for (subscription_s **p = &r->subs; *p; p = &(*p)->next)
    if (*p == s) {
      *p = s->next;
      break;
    }
  r->count--;
  subscription_count--;
  subscription_free(r, s);
  if (!run->readers.count)
    channel_drop(c); /* and the run, if others stay */
  else if (run->caught == run->readers.count)
    tail_read_by_all(run);
}

int reader_unsubscribe(reader_s *r, view_s channel) {
  subscription_s *s = find(r, channel);
  if (!s) {
    errno = ENOENT;
    return -1;
  }
  leave(r, s);
  return 0;
}

static void rewind_one(subscription_s *s, uint64_t cursor) {
  s->cursor = s->start = cursor;
  if (s->at == s->run->end)
    s->run->caught--;
  s->at = 0; /* the store first: the tail may keep less */
}

int reader_rewind(reader_s *r, view_s channel, uint64_t cursor) {
  subscription_s *s = r->is_merged ? r->subs : find(r, channel);
  if (!s) {
    errno = ENOENT;
    return -1;
  }
  if (!r->is_merged) {
    rewind_one(s, cursor);
  } else {
    r->cursor = cursor;
    for (; s; s = s->next)
      rewind_one(s, cursor);
  }
  sock_want_ready(r->uuid);
  return 0;
}

void reader_has(reader_s *r, view_s channel, uint64_t since) {
  subscription_s *s = find(r, channel);
  if (s && since < s->start)
    s->start = since;
}

void reader_fini(reader_s *r) {
  catchup_drop(r);
  while (r->subs)
    leave(r, r->subs);
}

uint64_t pubsub_delivered(void) {
  return engine->delivered();
}

uint64_t pubsub_now(void) {
  return engine->now();
}

view_s reader_channel(const reader_s *r) {
  return r->subs ? channel_name(r->subs->run->channel) : view_of(NULL, 0);
}

uint64_t reader_cursor(const reader_s *r) {
  for (const subscription_s *s = r->subs; s; s = s->next)
    if (has_news(s))
      return 0;
  return delivered_id;
}

/* ---- a lap ------------------------------------------------------------- */

/* Whoever reads this channel lacks messages: its tails are emptied, so that
 * each reader finds itself behind their start and is told. */
static void lap_channel(channel_s *c, void *arg) {
  const uint64_t *to = arg;
  if (!c->is_pattern && !engine->is_newer(c->hash, c->last_id))
    return;
  for (run_s *run = &c->first; run; run = run->next)
    if (run->readers.count) {
      tail_lose(run);
      run->caught = 0;
      facil_set_ready(&run->readers);
    }
  c->last_id = *to;
  waiters_tell(c);
}

void pubsub_lapped(uint64_t to) {
  delivered_id = to;
  channel_each(lap_channel, &to);
}

pubsub_stats_s pubsub_stats(void) {
  pubsub_stats_s s = {.channels = channel_total(),
                      .subscriptions = subscription_count};
  tail_count(&s.tails, &s.tail_bytes);
  return s;
}
