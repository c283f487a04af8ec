/* pattern.c - patterns: names in which `*` stands for a part.
 *
 * All patterns that this worker has subscribers of lie in a trie of parts, so a
 * message visits only the nodes that match its channel. A part goes with the
 * separator before it (`:` or `/`, none before the first), since `a:*` does not
 * match `a/b`. Invariant: a node is there exactly while a pattern needs it. */
#include "facil/utf8.h"
#include "pubsub_internal.h"

typedef struct node_s {
  struct node_s *parent, *next; /* next: in its bucket */
  uint64_t hash;
  uint32_t children;
  channel_s *ends_here; /* the pattern whose last part this is */
  size_t len;
  char part[]; /* with its separator */
} node_s;

static node_s root;
static node_s **buckets;
static size_t bucket_count, node_count;

/* ---- parts ----------------------------------------------------------------
 */

static bool is_separator(char c) {
  return c == ':' || c == '/';
}

/* The part at the start of `name`, with the separator before it. */
static view_s part_of(view_s name) {
  size_t n = name.len && is_separator(name.data[0]) ? 1 : 0;
  while (n < name.len && !is_separator(name.data[n]))
    n++;
  return view_sub(name, 0, n);
}

static view_s without_separator(view_s part) {
  return part.len && is_separator(part.data[0]) ? view_sub(part, 1, part.len)
                                                : part;
}

const char *pattern_fault(view_s pattern) {
  char plain[256];
  if (pattern.len < 1 || pattern.len > 255)
    return "A pattern has 1 to 255 bytes.";
  bool has_star = false;
  for (view_s left = pattern; left.len;) {
    view_s part = part_of(left), word = without_separator(part);
    left = view_sub(left, part.len, left.len);
    bool is_star = view_eq(word, VIEW_LIT("*"));
    bool is_rest = view_eq(word, VIEW_LIT("**")) && !left.len;
    if (word.len && memchr(word.data, '*', word.len) && !is_star && !is_rest)
      return "In a pattern '*' is a whole part, and '**' the last one.";
    has_star |= is_star || is_rest;
  }
  if (!has_star)
    return "A pattern has a '*'.";
  for (size_t i = 0; i < pattern.len; i++)
    plain[i] = pattern.data[i] == '*' ? 'x' : pattern.data[i];
  return channel_name_fault(view_of(plain, pattern.len));
}

bool pattern_matches(view_s pattern, view_s name) {
  while (pattern.len && name.len) {
    view_s p = part_of(pattern), n = part_of(name);
    view_s want = without_separator(p), have = without_separator(n);
    bool same_separator = (p.len != want.len) == (n.len != have.len) &&
                          (p.len == want.len || p.data[0] == n.data[0]);
    if (!same_separator)
      return false;
    if (view_eq(want, VIEW_LIT("**")) && p.len == pattern.len)
      return name.len > n.len - have.len;
    if (view_eq(want, VIEW_LIT("*")) ? !have.len : !view_eq(want, have))
      return false;
    pattern = view_sub(pattern, p.len, pattern.len);
    name = view_sub(name, n.len, name.len);
  }
  return !pattern.len && !name.len;
}

/* ---- the trie
 * ---------------------------------------------------------------- */

static uint64_t hash_of(const node_s *parent, view_s part) {
  return engine->hash(part) ^ (uint64_t)(uintptr_t)parent * 0x9E3779B97F4A7C15u;
}

static node_s *child_of(const node_s *parent, view_s part) {
  if (!node_count)
    return NULL;
  uint64_t hash = hash_of(parent, part);
  node_s *n = buckets[hash & (bucket_count - 1)];
  while (n && !(n->parent == parent && view_eq(view_of(n->part, n->len), part)))
    n = n->next;
  return n;
}

static int grow(void) {
  size_t count = bucket_count ? bucket_count * 2 : 64;
  node_s **bigger = calloc(count, sizeof *bigger);
  if (!bigger)
    return -1;
  for (size_t i = 0; i < bucket_count; i++)
    for (node_s *n = buckets[i], *next; n; n = next) {
      next = n->next;
      node_s **b = &bigger[n->hash & (count - 1)];
      n->next = *b;
      *b = n;
    }
  free(buckets);
  buckets = bigger;
  bucket_count = count;
  return 0;
}

static node_s *child_get(node_s *parent, view_s part) {
  node_s *n = child_of(parent, part);
  if (n)
    return n;
  if (node_count >= bucket_count && grow() < 0 && !bucket_count)
    return NULL;
  n = malloc(sizeof *n + part.len);
  if (!n)
    return NULL;
  *n = (node_s){
      .parent = parent, .hash = hash_of(parent, part), .len = part.len};
  memcpy(n->part, part.data, part.len);
  node_s **b = &buckets[n->hash & (bucket_count - 1)];
  n->next = *b;
  *b = n;
  parent->children++;
  node_count++;
  return n;
}

static void prune(node_s *n) {
  while (n != &root && !n->children && !n->ends_here) {
    node_s *parent = n->parent;
    node_s **b = &buckets[n->hash & (bucket_count - 1)];
    while (*b != n)
      b = &(*b)->next;
    *b = n->next;
    node_count--;
    parent->children--;
    free(n);
    n = parent;
  }
}

int pattern_add(channel_s *c) {
  node_s *n = &root;
  for (view_s left = channel_name(c); left.len;) {
    view_s part = part_of(left);
    node_s *child = child_get(n, part);
    if (!child) {
      prune(n);
      return -1;
    }
    n = child;
    left = view_sub(left, part.len, left.len);
  }
  n->ends_here = c;
  return 0;
}

void pattern_remove(channel_s *c) {
  node_s *n = &root;
  for (view_s left = channel_name(c); left.len && n;) {
    view_s part = part_of(left);
    n = child_of(n, part);
    left = view_sub(left, part.len, left.len);
  }
  if (!n)
    return;
  n->ends_here = NULL;
  prune(n);
}

/* ---- matching
 * ------------------------------------------------------------------ */

static void match(const node_s *n, view_s left, const message_s *m,
                  void (*each)(channel_s *c, const message_s *m));

static void follow(const node_s *n, view_s part, view_s left,
                   const message_s *m,
                   void (*each)(channel_s *c, const message_s *m)) {
  const node_s *child = child_of(n, part);
  if (!child)
    return;
  if (left.len)
    match(child, left, m, each);
  else if (child->ends_here)
    each(child->ends_here, m);
}

static void match(const node_s *n, view_s left, const message_s *m,
                  void (*each)(channel_s *c, const message_s *m)) {
  if (!n->children)
    return;
  view_s part = part_of(left), word = without_separator(part);
  view_s rest = view_sub(left, part.len, left.len);
  char star[3];
  size_t at = 0;
  follow(n, part, rest, m, each);
  if (part.len != word.len)
    star[at++] = part.data[0];
  star[at] = star[at + 1] = '*';
  if (word.len)
    follow(n, view_of(star, at + 1), rest, m, each);
  if (left.len > at) /* '**' takes all that is left, at least a byte */
    follow(n, view_of(star, at + 2), view_of(NULL, 0), m, each);
}

void pattern_each_match(const message_s *m,
                        void (*each)(channel_s *c, const message_s *m)) {
  if (node_count)
    match(&root, m->channel, m, each);
}
