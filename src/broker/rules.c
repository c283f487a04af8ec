/* rules.c - parsing and finding history rules.
 *
 * Kept true: what is in the list was whole and well formed, so finding has no
 * errors; matching is one pass over both texts, without recursion: only a final
 * `**` may stand for more than a part. */
#include "rules.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { PATTERN_MAX = 255, WORD_MAX = 320 };

typedef struct {
  rule_s rule;
  size_t len;
  char pattern[PATTERN_MAX];
} entry_s;

struct rules_s {
  rule_s usual;
  size_t count, cap;
  entry_s *entries;
};

/* --- Patterns --- */

static bool is_separator(char c) {
  return c == ':' || c == '/';
}

/* The length of the part that begins at `at`. */
static size_t part_len(view_s v, size_t at) {
  size_t n = 0;
  while (at + n < v.len && !is_separator(v.data[at + n]))
    n++;
  return n;
}

static bool has_star(view_s part) {
  return part.len && memchr(part.data, '*', part.len) != NULL;
}

bool rules_is_pattern(view_s p) {
  if (p.len == 0 || p.len > PATTERN_MAX)
    return false;
  for (size_t at = 0; at <= p.len;) {
    size_t n = part_len(p, at);
    view_s part = view_sub(p, at, n);
    bool is_last = at + n == p.len;
    if (has_star(part) && !view_eq(part, VIEW_LIT("*")) &&
        !(is_last && view_eq(part, VIEW_LIT("**"))))
      return false;
    at += n + 1;
  }
  for (size_t i = 0; i < p.len; i++)
    if (iscntrl((unsigned char)p.data[i]))
      return false;
  return true;
}

bool rules_match(view_s p, view_s c) {
  size_t at = 0, in = 0;
  while (at < p.len) {
    if (p.data[at] != '*') {
      if (in == c.len || c.data[in] != p.data[at])
        return false;
      at++, in++;
      continue;
    }
    if (at + 1 < p.len && p.data[at + 1] == '*')
      return in < c.len;
    size_t n = part_len(c, in);
    if (n == 0)
      return false;
    at++, in += n;
  }
  return in == c.len;
}

/* --- Making --- */

rules_s *rules_new(const rule_s *usual) {
  rules_s *r = calloc(1, sizeof *r);
  if (r)
    r->usual = *usual;
  return r;
}

void rules_free(rules_s *r) {
  if (r)
    free(r->entries);
  free(r);
}

/* Where an error goes. */
typedef struct {
  char *text;
  size_t len;
} report_s;

FACIL_PRINTF(2, 3) static int refuse(const report_s *r, const char *fmt, ...) {
  char what[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  for (size_t i = 0; what[i]; i++)
    if (iscntrl((unsigned char)what[i]))
      what[i] = '?';
  snprintf(r->text, r->len, "crier: history.rule: %s", what);
  errno = EINVAL;
  return -1;
}

/* --- Numbers with units --- */

typedef struct {
  const char *text;
  uint64_t worth;
} unit_s;

static const unit_s no_units[] = {{"", 1}, {NULL, 0}};
static const unit_s sizes[] = {
    {"", 1},           {"B", 1},         {"K", 1 << 10},
    {"KiB", 1 << 10},  {"M", 1 << 20},   {"MiB", 1 << 20},
    {"G", 1ull << 30}, {"GiB", 1 << 30}, {NULL, 0}};
static const unit_s durations[] = {{"", 1000000},     {"ms", 1000},
                                   {"s", 1000000},    {"m", 60000000},
                                   {"h", 3600000000}, {NULL, 0}};

static const unit_s *unit_named(const unit_s *units, const char *name) {
  for (bool is_time = units == durations; units->text; units++)
    if ((is_time ? strcmp : strcasecmp)(units->text, name) == 0)
      return units;
  return NULL;
}

/* 0; 1: it is too large; -1: it is none. */
static int read_number(const char *text, const unit_s *units, uint64_t *out) {
  uint64_t v = 0;
  bool fits = true;
  const char *p = text;
  for (; *p >= '0' && *p <= '9'; p++) {
    uint64_t digit = (uint64_t)(*p - '0');
    fits = fits && v <= (UINT64_MAX - digit) / 10;
    v = fits ? v * 10 + digit : 0;
  }
  const unit_s *unit = p == text ? NULL : unit_named(units, p);
  if (!unit)
    return -1;
  /* so that an id and an age can be added */
  if (!fits || v > (UINT64_MAX >> 2) / unit->worth)
    return 1;
  *out = v * unit->worth;
  return 0;
}

/* --- One `name=value` --- */

typedef struct {
  const char *name;
  size_t offset;
  const unit_s *units;
  const char *noun;
} part_s;

static const part_s parts[] = {
    {"count", offsetof(rule_s, count), no_units, "a number"},
    {"bytes", offsetof(rule_s, bytes), sizes,
     "a size (a number with B, KiB, MiB or GiB)"},
    {"age", offsetof(rule_s, age_us), durations,
     "a duration (a number with ms, s, m or h)"},
};

static int set_slow(rule_s *rule, const char *value, const report_s *r) {
  if (strcmp(value, "skip") == 0)
    rule->slow = RULE_SKIP;
  else if (strcmp(value, "close") == 0)
    rule->slow = RULE_CLOSE;
  else
    return refuse(r, "slow: '%.60s' is none of skip, close", value);
  return 0;
}

static int set_number(rule_s *rule, const part_s *part, const char *value,
                      const report_s *r) {
  uint64_t v = 0;
  int rc = read_number(value, part->units, &v);
  if (rc < 0)
    return refuse(r, "%s: '%.60s' is not %s", part->name, value, part->noun);
  if (rc > 0)
    return refuse(r, "%s: '%.60s' is out of range", part->name, value);
  memcpy((char *)rule + part->offset, &v, sizeof v);
  return 0;
}

static int set_word(rule_s *rule, char *word, unsigned *seen,
                    const report_s *r) {
  enum { PARTS = sizeof parts / sizeof *parts };
  char *value = strchr(word, '=');
  if (!value)
    return refuse(r, "'%.60s' is not NAME=VALUE", word);
  *value++ = '\0';
  size_t i = 0;
  while (i < PARTS && strcmp(parts[i].name, word) != 0)
    i++;
  if (i == PARTS && strcmp(word, "slow") != 0)
    return refuse(r, "'%.60s' is none of count, bytes, age, slow", word);
  if (*seen & 1u << i)
    return refuse(r, "'%s' is there twice", word);
  *seen |= 1u << i;
  return i == PARTS ? set_slow(rule, value, r)
                    : set_number(rule, &parts[i], value, r);
}

/* --- A whole rule --- */

/* Copy the next word into `out`. 0: there is none; -1: it is too long. */
static int next_word(const char **text, char out[WORD_MAX]) {
  const char *p = *text;
  while (*p == ' ' || *p == '\t')
    p++;
  size_t n = strcspn(p, " \t");
  *text = p + n;
  if (n >= WORD_MAX)
    return -1;
  memcpy(out, p, n);
  out[n] = '\0';
  return n > 0;
}

static int entry_parse(entry_s *e, const char *text, const report_s *r) {
  char word[WORD_MAX];
  unsigned seen = 0;
  int rc = next_word(&text, word);
  if (rc == 0)
    return refuse(r, "a pattern is missing");
  if (rc < 0 || !rules_is_pattern(view_str(word)))
    return refuse(r, "'%.60s' is no pattern (* is one part, ** the last ones)",
                  rc < 0 ? "..." : word);
  e->len = strlen(word);
  memcpy(e->pattern, word, e->len);
  while ((rc = next_word(&text, word)) > 0)
    if (set_word(&e->rule, word, &seen, r) < 0)
      return -1;
  if (rc < 0)
    return refuse(r, "a word of it is too long");
  return seen ? 0
              : refuse(r, "'%.*s' says nothing: count=, bytes=, age= or slow=",
                       (int)(e->len < 60 ? e->len : 60), e->pattern);
}

int rules_add(rules_s *rules, const char *text, char *err, size_t err_len) {
  report_s r = {err, err_len};
  entry_s e = {.rule = rules->usual};
  if (entry_parse(&e, text, &r) < 0)
    return -1;
  if (rules->count == rules->cap) {
    size_t cap = rules->cap ? rules->cap * 2 : 8;
    entry_s *more = realloc(rules->entries, cap * sizeof *more);
    if (!more)
      return -1;
    rules->entries = more;
    rules->cap = cap;
  }
  rules->entries[rules->count++] = e;
  return 0;
}

/* --- Finding --- */

const rule_s *rules_find(const rules_s *r, view_s channel) {
  for (size_t i = 0; i < r->count; i++) {
    const entry_s *e = &r->entries[i];
    if (rules_match(view_of(e->pattern, e->len), channel))
      return &e->rule;
  }
  return &r->usual;
}

static bool is_rest(view_s p, size_t at) {
  return view_eq(view_sub(p, at, p.len), VIEW_LIT("**"));
}

/* Whether there may be a channel that both match. */
static bool patterns_meet(view_s a, view_s b) {
  for (size_t i = 0, j = 0;; i++, j++) {
    if (is_rest(a, i) || is_rest(b, j))
      return i < a.len && j < b.len;
    view_s x = view_sub(a, i, part_len(a, i));
    view_s y = view_sub(b, j, part_len(b, j));
    bool same = has_star(x) ? y.len > 0 : has_star(y) ? x.len : view_eq(x, y);
    i += x.len;
    j += y.len;
    if (!same || i == a.len || j == b.len)
      return same && i == a.len && j == b.len;
    if (a.data[i] != b.data[j])
      return false;
  }
}

/* Whether `rule` matches all that `p` does: a star is a part like any other. */
static bool pattern_covers(view_s rule, view_s p) {
  bool has_rest = p.len >= 2 && is_rest(p, p.len - 2);
  bool takes_rest = rule.len >= 2 && is_rest(rule, rule.len - 2);
  return rules_match(rule, p) && (takes_rest || !has_rest);
}

bool rules_keep_all(const rules_s *r, view_s pattern) {
  for (size_t i = 0; i < r->count; i++) {
    const entry_s *e = &r->entries[i];
    view_s rule = view_of(e->pattern, e->len);
    if (e->rule.count == 0 && patterns_meet(rule, pattern))
      return false;
    if (pattern_covers(rule, pattern))
      return e->rule.count > 0;
  }
  return r->usual.count > 0;
}

uint64_t rules_shortest_age(const rules_s *r) {
  uint64_t shortest = UINT64_MAX;
  for (size_t i = 0; i <= r->count; i++) {
    const rule_s *rule = i < r->count ? &r->entries[i].rule : &r->usual;
    if (rule->age_us && rule->age_us < shortest)
      shortest = rule->age_us;
  }
  return shortest;
}
