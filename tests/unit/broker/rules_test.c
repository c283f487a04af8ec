/* rules_test.c - history rules: what a pattern matches, what a rule says, and
 * what is said of a rule that is none. */
#include "rules.h"
#include <criterion/criterion.h>
#include <stdio.h>

static bool matches(const char *pattern, const char *channel) {
  return rules_match(view_str(pattern), view_str(channel));
}

static const rule_s usual = {1000, 1 << 20, 600000000, RULE_SKIP};

static const char *add_error(const char *text) {
  static char err[512];
  rules_s *r = rules_new(&usual);
  cr_assert(r);
  snprintf(err, sizeof err, "none");
  int rc = rules_add(r, text, err, sizeof err);
  cr_assert_eq(rc == 0, strcmp(err, "none") == 0);
  rules_free(r);
  return err;
}

Test(rules, a_star_stands_for_one_part) {
  cr_assert(matches("a:*", "a:b"));
  cr_assert(matches("a:*:c", "a:bb:c"));
  cr_assert(matches("*", "abc"));
  cr_assert(matches("*:*", "a:b"));
  cr_assert(matches("a/*", "a/b"));
  cr_assert_not(matches("a:*", "a/b"));
  cr_assert_not(matches("a:*", "a:b:c"));
  cr_assert_not(matches("a:*", "a:b/c"));
  cr_assert_not(matches("a:*", "a:"));
  cr_assert_not(matches("a:*", "a"));
  cr_assert_not(matches("*", "a:b"));
  cr_assert_not(matches("*", ""));
  cr_assert_not(matches("a:*:c", "a::c"));
}

Test(rules, two_stars_stand_for_all_the_rest) {
  cr_assert(matches("**", "a"));
  cr_assert(matches("**", "a:b/c"));
  cr_assert(matches("a:**", "a:b"));
  cr_assert(matches("a:**", "a:b:c/d"));
  cr_assert(matches("*:**", "a:b:c"));
  cr_assert_not(matches("a:**", "a:"));
  cr_assert_not(matches("a:**", "a"));
  cr_assert_not(matches("a:**", "b:c"));
  cr_assert_not(matches("**", ""));
}

Test(rules, a_name_matches_itself_byte_by_byte) {
  cr_assert(matches("news", "news"));
  cr_assert_not(matches("news", "New"));
  cr_assert_not(matches("news", "newsx"));
  cr_assert_not(matches("news", "new"));
}

Test(rules, a_star_within_a_part_is_no_pattern) {
  static const char *const bad[] = {"",     "a*",    "*a",  "a:b*", "***",
                                    "**:a", "a:**/", "a\n", "a:***"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    cr_assert_not(rules_is_pattern(view_str(bad[i])), "%s", bad[i]);
  cr_assert(rules_is_pattern(view_str("a:*/**")));
  cr_assert(rules_is_pattern(view_str(":")));
}

Test(rules, the_first_rule_that_matches_decides) {
  char err[512];
  rules_s *r = rules_new(&usual);
  cr_assert_eq(rules_add(r, "log:* count=5", err, sizeof err), 0);
  cr_assert_eq(
      rules_add(r, " log:** \t bytes=2KiB  age=90m slow=close ", err, 512), 0);
  cr_assert_eq(rules_add(r, "log:a count=7", err, sizeof err), 0);
  cr_assert_eq(rules_find(r, view_str("log:a"))->count, 5);
  const rule_s *deep = rules_find(r, view_str("log:a:b"));
  cr_assert_eq(deep->count, 1000);
  cr_assert_eq(deep->bytes, 2048);
  cr_assert_eq(deep->age_us, 5400000000);
  cr_assert_eq(deep->slow, RULE_CLOSE);
  const rule_s *other = rules_find(r, view_str("news"));
  cr_assert_eq(other->count, 1000);
  cr_assert_eq(other->bytes, 1 << 20);
  cr_assert_eq(other->age_us, 600000000);
  cr_assert_eq(other->slow, RULE_SKIP);
  rules_free(r);
}

Test(rules, units_are_those_of_settings) {
  char err[512];
  rules_s *r = rules_new(&usual);
  cr_assert_eq(rules_add(r, "a count=0 bytes=3m age=0", err, 512), 0);
  cr_assert_eq(rules_add(r, "b bytes=1GiB age=250ms", err, 512), 0);
  cr_assert_eq(rules_add(r, "c bytes=17 age=2h", err, 512), 0);
  cr_assert_eq(rules_add(r, "d bytes=5kib age=7", err, 512), 0);
  const rule_s *a = rules_find(r, view_str("a"));
  cr_assert(a->count == 0 && a->bytes == 3 << 20 && a->age_us == 0);
  const rule_s *b = rules_find(r, view_str("b"));
  cr_assert(b->bytes == 1 << 30 && b->age_us == 250000);
  const rule_s *c = rules_find(r, view_str("c"));
  cr_assert(c->bytes == 17 && c->age_us == 7200000000);
  const rule_s *d = rules_find(r, view_str("d"));
  cr_assert(d->bytes == 5120 && d->age_us == 7000000);
  cr_assert_eq(rules_shortest_age(r), 250000);
  rules_free(r);
}

Test(rules, many_rules_are_kept) {
  char err[512], text[64];
  rules_s *r = rules_new(&usual);
  for (unsigned i = 1; i <= 100; i++) {
    snprintf(text, sizeof text, "c%u count=%u", i, i);
    cr_assert_eq(rules_add(r, text, err, sizeof err), 0);
  }
  for (unsigned i = 1; i <= 100; i++) {
    snprintf(text, sizeof text, "c%u", i);
    cr_assert_eq(rules_find(r, view_str(text))->count, i);
  }
  rules_free(r);
}

Test(rules, what_is_wrong_is_said_in_one_line) {
  static const char *const cases[][2] = {
      {"", "a pattern is missing"},
      {"  ", "a pattern is missing"},
      {"a*", "'a*' is no pattern (* is one part, ** the last ones)"},
      {"a", "'a' says nothing: count=, bytes=, age= or slow="},
      {"a count", "'count' is not NAME=VALUE"},
      {"a size=1", "'size' is none of count, bytes, age, slow"},
      {"a count=x", "count: 'x' is not a number"},
      {"a count=1KiB", "count: '1KiB' is not a number"},
      {"a count=", "count: '' is not a number"},
      {"a count=-1", "count: '-1' is not a number"},
      {"a count=99999999999999999999",
       "count: '99999999999999999999' is out of range"},
      {"a bytes=1X",
       "bytes: '1X' is not a size (a number with B, KiB, MiB or GiB)"},
      {"a bytes=18014398509481984KiB",
       "bytes: '18014398509481984KiB' is out of range"},
      {"a age=1d", "age: '1d' is not a duration (a number with ms, s, m or h)"},
      {"a age=1 age=2", "'age' is there twice"},
      {"a slow=wait", "slow: 'wait' is none of skip, close"},
      {"a count=\n", "count: '?' is not a number"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char want[512];
    snprintf(want, sizeof want, "crier: history.rule: %s", cases[i][1]);
    cr_assert_str_eq(add_error(cases[i][0]), want);
  }
}

Test(rules, what_is_too_long_is_refused) {
  char text[600];
  memset(text, 'a', sizeof text);
  memcpy(text + 256, " count=1", 9);
  cr_assert(strstr(add_error(text), "is no pattern"));
  memset(text, 'a', sizeof text);
  text[sizeof text - 1] = '\0';
  cr_assert(strstr(add_error(text), "'...' is no pattern"));
  text[1] = ' ';
  cr_assert(strstr(add_error(text), "a word of it is too long"));
}

Test(rules, a_pattern_is_kept_where_nothing_that_it_matches_may_be_without) {
  static const struct {
    const char *pattern;
    bool is_kept;
  } cases[] = {{"a:*", true},       {"n:*", false},   {"*:x", false},
               {"**", false},       {"n:a:*", true},  {"n/*", true},
               {"*:b:*:d", true},   {"l:*", true},    {"l:**", true},
               {"l:x:**", true},    {"q:*:1", false}, {"q:*:2", true},
               {"q:**", false},     {"*", true},      {"*:**", false},
               {"l:n:deep:*", true}};
  char err[512];
  rules_s *r = rules_new(&usual);
  cr_assert_eq(rules_add(r, "l:** count=5", err, 512), 0);
  cr_assert_eq(rules_add(r, "n:* count=0", err, 512), 0);
  cr_assert_eq(rules_add(r, "l:n:** count=0", err, 512), 0);
  cr_assert_eq(rules_add(r, "q:x:1 count=0", err, 512), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    cr_assert_eq(rules_keep_all(r, view_str(cases[i].pattern)),
                 cases[i].is_kept, "%s", cases[i].pattern);
  rules_free(r);
  const rule_s none = {.count = 0};
  r = rules_new(&none);
  cr_assert_eq(rules_add(r, "k:* count=5", err, 512), 0);
  cr_assert_eq(rules_add(r, "r:** count=5", err, 512), 0);
  cr_assert(rules_keep_all(r, view_str("k:*")));
  cr_assert_not(rules_keep_all(r, view_str("k:**")));
  cr_assert(rules_keep_all(r, view_str("r:*:x")));
  cr_assert(rules_keep_all(r, view_str("r:x:**")));
  cr_assert_not(rules_keep_all(r, view_str("a:*")));
  rules_free(r);
}
