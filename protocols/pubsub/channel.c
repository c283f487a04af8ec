/* channel.c - channels by name, and the runs of each.
 *
 * A channel comes with its first subscriber here and goes with its last. Names
 * are compared whenever hashes are equal, so a collision costs time and nothing
 * else. Invariant: a channel is in the table exactly while somebody is
 * subscribed. */
#include "facil/utf8.h"
#include "pubsub_internal.h"

static channel_s **buckets;
static size_t bucket_count, channel_count; /* buckets: a power of two */

view_s channel_name(const channel_s *c) {
  return view_of(c->name, c->name_len);
}

size_t channel_total(void) {
  return channel_count;
}

static int grow(void) {
  size_t n = bucket_count ? bucket_count * 2 : 64;
  channel_s **bigger = calloc(n, sizeof *bigger);
  if (!bigger)
    return -1;
  for (size_t i = 0; i < bucket_count; i++)
    for (channel_s *c = buckets[i], *next; c; c = next) {
      next = c->next;
      channel_s **b = &bigger[c->hash & (n - 1)];
      c->next = *b;
      *b = c;
    }
  free(buckets);
  buckets = bigger;
  bucket_count = n;
  return 0;
}

channel_s *channel_find(view_s name, uint64_t hash) {
  if (!bucket_count)
    return NULL;
  channel_s *c = buckets[hash & (bucket_count - 1)];
  while (c && !(c->hash == hash && view_eq(channel_name(c), name)))
    c = c->next;
  return c;
}

channel_s *channel_get(view_s name, uint64_t hash) {
  channel_s *c = channel_find(name, hash);
  if (c)
    return c;
  if (channel_count >= bucket_count && grow() < 0 && !bucket_count)
    return NULL;
  c = malloc(sizeof *c + name.len);
  if (!c)
    return NULL;
  *c = (channel_s){.hash = hash, .name_len = (uint8_t)name.len};
  memcpy(c->name, name.data, name.len);
  facil_set_init(&c->first.readers);
  list_init(&c->waiters);
  c->is_pattern = memchr(name.data, '*', name.len) != NULL;
  c->keeps = engine->keeps(name);
  if (c->is_pattern && pattern_add(c) < 0) {
    free(c);
    return NULL;
  }
  channel_s **b = &buckets[hash & (bucket_count - 1)];
  c->next = *b;
  *b = c;
  channel_count++;
  return c;
}

static void run_clear(run_s *run) {
  tail_free(run);
  facil_set_fini(&run->readers);
  run->kind = NULL;
}

void channel_drop(channel_s *c) {
  for (run_s **r = &c->first.next; *r;) {
    run_s *run = *r;
    if (run->readers.count) {
      r = &run->next;
      continue;
    }
    *r = run->next;
    run_clear(run);
    free(run);
  }
  if (c->first.kind && !c->first.readers.count)
    run_clear(&c->first);
  if (c->first.kind || c->first.next || !list_empty(&c->waiters))
    return;
  if (c->is_pattern)
    pattern_remove(c);
  catchup_forget(); /* slices are known by their channel */
  channel_s **b = &buckets[c->hash & (bucket_count - 1)];
  while (*b != c)
    b = &(*b)->next;
  *b = c->next;
  channel_count--;
  free(c);
}

run_s *run_get(channel_s *c, const reader_kind_s *kind) {
  for (run_s *r = &c->first; r; r = r->next)
    if (r->kind == kind)
      return r;
  run_s *r = &c->first;
  if (r->kind) {
    r = calloc(1, sizeof *r);
    if (!r)
      return NULL;
    r->next = c->first.next;
    c->first.next = r;
  }
  facil_set_init(&r->readers);
  r->channel = c;
  r->kind = kind;
  r->tail = NULL;
  r->end = 1; /* 0 is the place of a reader that lacks more than the tail has */
  r->caught = 0;
  return r;
}

void channel_each(void (*each)(channel_s *c, void *arg), void *arg) {
  for (size_t i = 0; i < bucket_count; i++)
    for (channel_s *c = buckets[i], *next; c; c = next) {
      next = c->next;
      each(c, arg);
    }
}

/* ---- names ------------------------------------------------------------- */

static bool has_control(view_s name) {
  for (size_t i = 0; i < name.len; i++) {
    unsigned char b = (unsigned char)name.data[i];
    if (b < 0x20 || b == 0x7f)
      return true;
    if (b == 0xC2 && i + 1 < name.len && /* U+0080 to U+009F */
        (unsigned char)name.data[i + 1] < 0xA0)
      return true;
  }
  return false;
}

const char *channel_name_fault(view_s name) {
  if (name.len < 1 || name.len > 255)
    return "A channel's name has 1 to 255 bytes.";
  if (!utf8_is_valid(name))
    return "A channel's name is UTF-8.";
  if (has_control(name))
    return "A channel's name has no control characters.";
  if (memchr(name.data, '*', name.len))
    return "A channel's name has no '*'.";
  if (view_eq(name, VIEW_LIT(".")) || view_eq(name, VIEW_LIT("..")))
    return "A channel's name is not '.' or '..'.";
  return NULL;
}
