/* store_test.c - what the store keeps, drops, reads and tells, with exact ids.
 *
 * Ids are START + n; what is read is written without START. */
#include "store_support.h"

static const char *folder;

static void setup(void) {
  folder = temp_folder();
  config_usual(folder);
}

static void teardown(void) {
  release();
  rules_free(rules);
  folder_remove(folder);
}

TestSuite(store, .init = setup, .fini = teardown, .timeout = 60);

/* --- Messages --- */

Test(store, what_was_kept_is_read_in_order_of_id) {
  prepare();
  cr_assert_eq(publish(START + 1, "a", "one"), RING_KEPT);
  cr_assert_eq(publish(START + 2, "b", "other"), RING_KEPT);
  cr_assert_eq(publish(START + 3, "a", "two"), RING_KEPT);
  cr_assert_str_eq(kept("a"), "1:one 3:two");
  cr_assert_str_eq(kept("b"), "2:other");
  cr_assert_str_eq(kept("c"), "");
  cr_assert_str_eq(read_all(START, ALL), "1:a=one 2:b=other 3:a=two");
  cr_assert_eq(figures().committed, START + 3);
}

static stored_s seen;
static char seen_body[1 << 21];

static bool see(void *arg, const stored_s *m) {
  (void)arg;
  seen = *m;
  memcpy(seen_body, m->body.data, m->body.len);
  return view_eq(m->type, VIEW_LIT("application/json")) &&
         view_eq(m->event, VIEW_LIT("made")) &&
         view_eq(m->channel, VIEW_LIT("a:b"));
}

Test(store, all_of_a_message_comes_back) {
  static char body[1 << 20];
  static const size_t sizes[] = {0,    1,    2000, 2100, 4000,
                                 4050, 4080, 4081, 8192, 1 << 20};
  rule("** count=1000 bytes=0");
  prepare();
  for (size_t i = 0; i < sizeof body; i++)
    body[i] = (char)(i * 2654435761u >> 13);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    ring_record_s r = record(START + i + 1, "a:b", "");
    r.body = view_of(body, sizes[i]);
    r.type = VIEW_LIT("application/json");
    r.event = VIEW_LIT("made");
    r.kind = (uint8_t)(i + 1);
    r.ttl = (uint32_t)i * 60;
    cr_assert_eq(publish_record(r).verdict, RING_KEPT);
    cr_assert_eq(store_read(st, view_str("a:b"), START + i, ALL,
                            (store_limit_s){5, 1}, see, NULL, &result),
                 0);
    cr_assert_eq(result.messages, 1);
    cr_assert_eq(result.bytes, sizes[i]);
    cr_assert_eq(seen.id, START + i + 1);
    cr_assert_eq(seen.kind, i + 1);
    cr_assert_eq(seen.expires, i ? START + i + 1 + i * 60 * SECOND : 0);
    cr_assert_eq(seen.body.len, sizes[i]);
    cr_assert_eq(memcmp(seen_body, body, sizes[i]), 0);
  }
  cr_assert_eq(info("a:b").count, 10);
  delete_channel(START + 20, "a:b");
  cr_assert_str_eq(kept("a:b"), "");
}

Test(store, names_that_begin_alike_do_not_mix) {
  char longest[256];
  memset(longest, 'x', 255);
  longest[255] = '\0';
  const char *const names[] = {"a", "ab", "a:b", "a\x01", "\xff", longest};
  prepare();
  for (size_t i = 0; i < 12; i++)
    publish(START + i + 1, names[i % 6], i < 6 ? "x" : "y");
  for (size_t i = 0; i < 6; i++) {
    char want[32];
    snprintf(want, sizeof want, "%zu:x %zu:y", i + 1, i + 7);
    cr_assert_str_eq(kept(names[i]), want);
  }
  delete_channel(START + 20, "a");
  cr_assert_str_eq(kept("a"), "");
  cr_assert_str_eq(kept("ab"), "2:x 8:y");
  ring_record_s r = record(START + 21, longest, "z");
  char key[129];
  memset(key, 'k', 128);
  key[128] = '\0';
  r.key = view_str(key);
  cr_assert_eq(publish_record(r).verdict, RING_KEPT);
  r.id++;
  cr_assert_eq(publish_record(r).verdict, RING_DUPLICATE);
}

Test(store, a_channel_without_history_is_not_kept) {
  rule("live:* count=0");
  prepare();
  cr_assert_eq(publish(START + 1, "live:a", "x"), RING_KEPT);
  cr_assert_str_eq(kept("live:a"), "");
  cr_assert_not(info("live:a").exists);
  cr_assert_eq(figures().committed, START + 1);
  cr_assert_not(store_concerns(st, rules_find(rules, view_str("live:a")), 0));
  cr_assert(store_concerns(st, rules_find(rules, view_str("live:a")), true));
  cr_assert(store_concerns(st, rules_find(rules, view_str("a")), false));
}

Test(store, what_is_committed_is_said_at_the_next_begin) {
  uint64_t committed = 0;
  prepare();
  cr_assert_eq(ring_side()->ops->begin(ring_side(), &committed), 0);
  cr_assert_eq(committed, 0);
  put(record(START + 1, "a", "x"));
  put(record(START + 2, "a", "y"));
  commit(START + 9);
  cr_assert_eq(ring_side()->ops->begin(ring_side(), &committed), 0);
  cr_assert_eq(committed, START + 9);
  put(record(START + 10, "a", "z"));
  cr_assert_eq(ring_side()->ops->reopen(ring_side(), &committed), 0);
  cr_assert_eq(committed, START + 9);
  cr_assert_str_eq(kept("a"), "1:x 2:y");
}

/* --- Reading --- */

Test(store, a_read_ends_at_until_and_at_its_limits) {
  prepare();
  for (unsigned i = 1; i <= 6; i++)
    publish(START + i, "a", "12345");
  cr_assert_str_eq(read_some("a", START + 2, START + 4, 9, 99),
                   "3:12345 4:12345");
  cr_assert_eq(result.cursor, START + 4);
  cr_assert_not(result.has_more);
  cr_assert_str_eq(read_some("a", START, ALL, 2, 99), "1:12345 2:12345");
  cr_assert_eq(result.cursor, START + 2);
  cr_assert(result.has_more);
  cr_assert_str_eq(read_some("a", START + 4, ALL, 2, 99), "5:12345 6:12345");
  cr_assert_not(result.has_more);
  cr_assert_eq(result.cursor, ALL);
  cr_assert_str_eq(read_some("a", START, ALL, 9, 14), "1:12345 2:12345");
  cr_assert(result.has_more);
  cr_assert_str_eq(read_some("a", START, ALL, 9, 0), "1:12345");
  cr_assert(result.has_more);
  cr_assert_str_eq(read_some("a", START + 5, START + 5, 9, 9), "");
  cr_assert_eq(result.cursor, START + 5);
  cr_assert_str_eq(read_some("a", START + 9, START + 5, 9, 9), "");
  cr_assert_eq(result.cursor, START + 9);
}

static bool stop_at_two(void *arg, const stored_s *m) {
  add_message(arg, m);
  return m->id != START + 2;
}

Test(store, the_reader_may_stop_a_read) {
  prepare();
  for (unsigned i = 1; i <= 3; i++)
    publish(START + i, "a", "x");
  text_len = 0;
  store_limit_s limit = {9, 99};
  cr_assert_eq(store_read(st, view_str("a"), START, ALL, limit, stop_at_two,
                          NULL, &result),
               0);
  cr_assert_str_eq(text, "1:x 2:x");
  cr_assert_eq(result.cursor, START + 2);
  cr_assert(result.has_more);
  text_len = 0;
  cr_assert_eq(
      store_read_all(st, START, ALL, limit, stop_at_two, NULL, &result), 0);
  cr_assert_str_eq(text, "1:x 2:x");
  cr_assert_eq(result.cursor, START + 2);
}

Test(store, the_last_n_are_found_from_behind) {
  uint64_t since;
  prepare();
  for (unsigned i = 1; i <= 5; i++)
    publish(START + i * 10, i == 4 ? "b" : "a", "x");
  cr_assert_eq(store_last(st, view_str("a"), 2, ALL, &since), 0);
  cr_assert_eq(since, START + 29);
  cr_assert_eq(store_last(st, view_str("a"), 2, START + 30, &since), 0);
  cr_assert_eq(since, START + 19);
  cr_assert_eq(store_last(st, view_str("a"), 99, START + 50, &since), 0);
  cr_assert_eq(since, START + 9);
  cr_assert_eq(store_last(st, view_str("c"), 2, START + 50, &since), 0);
  cr_assert_eq(since, START + 50);
  cr_assert_eq(store_last(st, view_str("a"), 0, START + 50, &since), 0);
  cr_assert_eq(since, START + 50);
  cr_assert_eq(store_last_all(st, 2, START + 50, NULL, NULL, &since), 0);
  cr_assert_eq(since, START + 39);
}

static bool is_of_a(void *arg, const stored_s *m) {
  (void)arg;
  return view_eq(m->channel, VIEW_LIT("a"));
}

Test(store, the_last_n_of_some_channels_are_found_too) {
  uint64_t since;
  prepare();
  for (unsigned i = 1; i <= 6; i++)
    publish(START + i, i % 2 ? "a" : "b", "x");
  cr_assert_eq(store_last_all(st, 2, ALL, is_of_a, NULL, &since), 0);
  cr_assert_eq(since, START + 2);
  cr_assert_eq(store_last_all(st, 9, ALL, is_of_a, NULL, &since), 0);
  cr_assert_eq(since, START);
}

static char names[4096];

static bool add_name(void *arg, const store_info_s *i) {
  size_t n = strlen(names);
  snprintf(names + n, sizeof names - n, "%s%.*s/%" PRIu64, n ? " " : "",
           (int)i->channel.len, i->channel.data, i->count);
  return arg == NULL;
}

static int list(const char *prefix, const char *after, size_t limit) {
  names[0] = '\0';
  return store_list(st, view_str(prefix), view_str(after), limit, add_name,
                    NULL);
}

Test(store, channels_are_listed_sorted_and_paged) {
  prepare();
  const char *const all[] = {"b", "a:2", "a", "a:1", "ab", "c", "a:1"};
  for (unsigned i = 0; i < 7; i++)
    publish(START + i + 1, all[i], "x");
  cr_assert_eq(list("", "", 99), 0);
  cr_assert_str_eq(names, "a/1 a:1/2 a:2/1 ab/1 b/1 c/1");
  cr_assert_eq(list("a", "", 2), 1);
  cr_assert_str_eq(names, "a/1 a:1/2");
  cr_assert_eq(list("a", "a:1", 2), 0);
  cr_assert_str_eq(names, "a:2/1 ab/1");
  cr_assert_eq(list("a:", "a", 99), 0);
  cr_assert_str_eq(names, "a:1/2 a:2/1");
  cr_assert_eq(list("a", "b", 99), 0);
  cr_assert_str_eq(names, "");
  cr_assert_eq(list("a", "a:", 0), 1);
  cr_assert_eq(list("x", "", 9), 0);
  cr_assert_str_eq(names, "");
}

/* --- Trimming, marks, gaps --- */

Test(store, the_oldest_go_by_count) { /* A16 */
  rule("a count=3");
  prepare();
  for (unsigned i = 1; i <= 30; i++)
    publish(START + i, "a", "x");
  cr_assert_str_eq(kept("a"), "28:x 29:x 30:x");
  store_info_s i = info("a");
  cr_assert(i.exists);
  cr_assert_eq(i.count, 3);
  cr_assert_eq(i.bytes, 3);
  cr_assert_eq(i.first, START + 28);
  cr_assert_eq(i.last, START + 30);
  cr_assert_eq(i.trim, START + 27);
  cr_assert_str_eq(read_all(START + 27, ALL), "28:a=x 29:a=x 30:a=x");
}

Test(store, the_oldest_go_by_bytes) {
  rule("a bytes=10");
  prepare();
  publish(START + 1, "a", "1234");
  publish(START + 2, "a", "1234");
  publish(START + 3, "a", "12");
  cr_assert_str_eq(kept("a"), "1:1234 2:1234 3:12");
  publish(START + 4, "a", "123");
  cr_assert_str_eq(kept("a"), "2:1234 3:12 4:123");
  cr_assert_eq(info("a").bytes, 9);
  cr_assert_eq(info("a").trim, START + 1);
  publish(START + 5, "a", "1234567890");
  cr_assert_str_eq(kept("a"), "5:1234567890");
  publish(START + 6, "a", "12345678901");
  cr_assert_str_eq(kept("a"), "");
  cr_assert_eq(info("a").trim, START + 6);
}

Test(store, the_oldest_go_by_age_and_are_not_read_before_they_went) {
  rule("a age=10s");
  prepare();
  publish(START + 1, "a", "x");
  publish(START + 5 * SECOND, "a", "y");
  now = START + 1 + 10 * SECOND - 1;
  cr_assert_str_eq(gap("a", START), "none");
  cr_assert_eq(strncmp(kept("a"), "1:x ", 4), 0);
  now++;
  cr_assert_str_eq(kept("a"), "5000000:y");
  cr_assert_eq(info("a").count, 2);
  cr_assert_eq(info("a").first, START + 5 * SECOND);
  cr_assert_eq(info("a").trim, START + 1);
  cr_assert_str_eq(gap("a", START), "1-1");
  cr_assert_str_eq(gap("a", START + 1), "none");
  read_some("a", START, ALL, 9, 9);
  cr_assert_eq(result.gap_from, START + 1);
  cr_assert_eq(result.gap_to, START + 1);
  cr_assert(store_is_due(st));
  tick(START + 11 * SECOND);
  cr_assert_not(store_is_due(st));
  cr_assert_str_eq(kept("a"), "5000000:y");
  cr_assert_eq(info("a").count, 1);
  cr_assert_str_eq(gap("a", START), "1-1");
  now = START + 15 * SECOND;
  cr_assert(store_is_due(st));
  cr_assert_str_eq(read_all(START, ALL), "");
  tick(now);
  cr_assert_eq(info("a").count, 0);
  cr_assert_eq(info("a").trim, START + 5 * SECOND);
}

Test(store, what_ended_by_its_own_ttl_is_no_gap) {
  prepare();
  publish(START + 1, "a", "x");
  publish_ttl(START + 2, "a", "brief", 2);
  publish(START + 3, "a", "y");
  publish_ttl(START + 4, "b", "brief", 2);
  cr_assert_str_eq(kept("a"), "1:x 2:brief 3:y");
  now = START + 4 + 2 * SECOND - 1;
  cr_assert_str_eq(kept("a"), "1:x 3:y");
  cr_assert_str_eq(kept("b"), "4:brief");
  now++;
  cr_assert_str_eq(kept("b"), "");
  cr_assert_str_eq(read_all(START, ALL), "1:a=x 3:a=y");
  cr_assert_eq(info("a").count, 3);
  tick(now);
  cr_assert_eq(info("a").count, 2);
  cr_assert_str_eq(gap("a", START), "none");
  cr_assert_str_eq(gap("b", START), "none");
  cr_assert_not(info("b").exists, "its mark said nothing");
  cr_assert_eq(figures().messages, 2);
}

Test(store, a_message_that_had_ended_leaves_no_mark_when_it_is_trimmed) {
  rule("a count=2");
  prepare();
  for (unsigned i = 1; i <= 80; i++) /* more than a commit sees to */
    publish_ttl(START + i, "b", "brief", 1);
  publish_ttl(START + 91, "a", "brief", 1);
  publish(START + 92, "a", "x");
  now = START + 2 * SECOND;
  publish(now, "a", "y");
  cr_assert_str_eq(kept("a"), "92:x 2000000:y");
  cr_assert_str_eq(gap("a", START), "none");
  publish(START + 3 * SECOND, "a", "z");
  cr_assert_str_eq(gap("a", START), "1-92");
}

Test(store, a_ttl_beyond_the_age_is_of_no_use) {
  rule("a age=5s");
  prepare();
  publish_ttl(START + 1, "a", "x", 60);
  now = START + 1 + 5 * SECOND;
  cr_assert_str_eq(kept("a"), "");
  cr_assert_str_eq(gap("a", START), "1-1");
  tick(now);
  cr_assert_str_eq(gap("a", START), "1-1");
  now += 60 * SECOND;
  tick(now);
  cr_assert_eq(figures().messages, 0);
}

Test(store, deleted_history_is_a_gap_up_to_its_last_message) {
  prepare();
  for (unsigned i = 1; i <= 4; i++)
    publish(START + i, "a", "x");
  publish(START + 5, "b", "x");
  delete_channel(START + 6, "a");
  cr_assert_str_eq(kept("a"), "");
  cr_assert_str_eq(kept("b"), "5:x");
  cr_assert_str_eq(gap("a", START + 1), "2-4");
  cr_assert_str_eq(gap("a", START + 3), "4-4");
  cr_assert_str_eq(gap("a", START + 4), "none");
  cr_assert_str_eq(gap_until("a", START + 1, START + 2), "2-2");
  cr_assert_str_eq(gap_until("a", START + 2, START + 2), "none");
  delete_channel(START + 7, "a");
  delete_channel(START + 8, "never");
  cr_assert_not(info("never").exists);
  cr_assert_str_eq(gap("a", START + 4), "none");
  publish(START + 9, "a", "y");
  cr_assert_str_eq(kept("a"), "9:y");
  cr_assert_str_eq(gap("a", START + 3), "4-4");
  cr_assert_str_eq(gap("a", START + 4), "none");
  cr_assert_eq(figures().messages, 2);
}

Test(store, a_long_history_is_deleted_at_once_and_removed_little_by_little) {
  prepare();
  begin();
  for (unsigned i = 1; i <= 1000; i++)
    put(record(START + i, "a", "12345"));
  commit(START + 1000);
  delete_channel(START + 1001, "a");
  cr_assert_str_eq(kept("a"), "");
  cr_assert_str_eq(read_all(START, ALL), "");
  cr_assert_eq(info("a").count, 0);
  cr_assert_eq(figures().messages, 0);
  cr_assert_eq(figures().bytes, 0);
  publish(START + 1002, "a", "y");
  cr_assert_str_eq(kept("a"), "1002:y");
  cr_assert_str_eq(gap("a", START), "1-1000");
  tick(START + 1003);
  cr_assert_str_eq(read_all(START, ALL), "1002:a=y");
  cr_assert_eq(info("a").count, 1);
  cr_assert_eq(info("a").bytes, 1);
}

Test(store, the_slowest_worker_sees_it_before_it_is_trimmed) {
  rule("a count=2");
  prepare();
  low = START + 1;
  begin();
  for (unsigned i = 1; i <= 5; i++)
    put(record(START + i, "a", "x"));
  commit(START + 5);
  cr_assert_str_eq(kept("a"), "2:x 3:x 4:x 5:x");
  cr_assert_str_eq(gap("a", START + 1), "none");
  low = START + 3;
  publish(START + 6, "b", "x");
  now += SECOND;
  cr_assert(store_is_due(st));
  tick(START + SECOND);
  cr_assert_str_eq(kept("a"), "4:x 5:x");
  cr_assert_str_eq(gap("a", START + 1), "2-3");
  low = UINT64_MAX;
}

Test(store, what_is_too_old_waits_for_the_slowest_worker) {
  rule("a age=1s");
  prepare();
  low = START;
  publish(START + 1, "a", "x");
  now = START + 2 * SECOND;
  tick(now);
  cr_assert_eq(info("a").count, 1);
  low = now;
  now += SECOND;
  cr_assert(store_is_due(st));
  tick(now);
  cr_assert_eq(info("a").count, 0);
  low = UINT64_MAX;
}

/* Each line: a cursor, and what is told of each channel. */
Test(store, a_gap_is_told_exactly_when_the_cursor_is_below_the_mark) {
  rule("trimmed count=2");
  rule("aged age=1s");
  prepare();
  for (unsigned i = 1; i <= 5; i++)
    publish(START + i, "trimmed", "x"); /* mark 3 */
  publish(START + 6, "aged", "x");      /* mark 6, by then */
  publish(START + 7, "whole", "x");
  publish(START + 8, "dropped", "x");
  delete_channel(START + 9, "dropped"); /* mark 8 */
  now = START + 2 * SECOND;
  static const struct {
    int cursor;
    const char *trimmed, *aged, *whole, *dropped, *never;
  } table[] = {
      {-5, "-4-3", "-4-6", "-4-0", "-4-8", "-4-0"},
      {-1, "0-3", "0-6", "0-0", "0-8", "0-0"},
      {0, "1-3", "1-6", "none", "1-8", "none"},
      {2, "3-3", "3-6", "none", "3-8", "none"},
      {3, "none", "4-6", "none", "4-8", "none"},
      {5, "none", "6-6", "none", "6-8", "none"},
      {6, "none", "none", "none", "7-8", "none"},
      {7, "none", "none", "none", "8-8", "none"},
      {8, "none", "none", "none", "none", "none"},
      {999, "none", "none", "none", "none", "none"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    uint64_t cursor = START + (uint64_t)(int64_t)table[i].cursor;
    cr_assert_str_eq(gap("trimmed", cursor), table[i].trimmed, "%zu", i);
    cr_assert_str_eq(gap("aged", cursor), table[i].aged, "%zu", i);
    cr_assert_str_eq(gap("whole", cursor), table[i].whole, "%zu", i);
    cr_assert_str_eq(gap("dropped", cursor), table[i].dropped, "%zu", i);
    cr_assert_str_eq(gap("never", cursor), table[i].never, "%zu", i);
  }
}

Test(store, a_read_tells_the_same_gap_as_store_gap) {
  rule("a count=2");
  prepare();
  for (unsigned i = 1; i <= 5; i++)
    publish(START + i, "a", "x");
  cr_assert_str_eq(read_some("a", START + 1, ALL, 9, 9), "4:x 5:x");
  cr_assert_eq(result.gap_from, START + 2);
  cr_assert_eq(result.gap_to, START + 3);
  cr_assert_str_eq(read_some("a", START + 3, ALL, 9, 9), "4:x 5:x");
  cr_assert_eq(result.gap_to, 0);
  cr_assert_str_eq(read_some("a", START + 1, START + 2, 9, 9), "");
  cr_assert_eq(result.gap_from, START + 2);
  cr_assert_eq(result.gap_to, START + 2);
  cr_assert_eq(result.cursor, START + 2);
  read_all(START + 1, ALL);
  cr_assert_eq(result.gap_from, START + 2);
  cr_assert_eq(result.gap_to, START + 3);
  read_all(START + 3, ALL);
  cr_assert_eq(result.gap_to, 0);
}

Test(store, a_forgotten_channel_is_a_gap_for_all_without_a_record) {
  rule("a age=1s");
  config.forget_us = 100 * SECOND;
  prepare();
  publish(START + 5, "a", "x");
  publish(START + 6, "b", "x");
  now = START + 2 * SECOND;
  tick(now);
  cr_assert(info("a").exists);
  cr_assert_str_eq(gap("a", START), "1-5");
  cr_assert_str_eq(gap("never", START), "none");
  now = START + 5 + 100 * SECOND - 1;
  tick(now);
  cr_assert(info("a").exists);
  cr_assert_not(store_is_due(st));
  now++;
  cr_assert(store_is_due(st));
  tick(now);
  cr_assert_not(info("a").exists);
  cr_assert_eq(figures().forgotten, START + 5);
  cr_assert_eq(figures().channels, 1);
  cr_assert_str_eq(gap("a", START), "1-5");
  cr_assert_str_eq(gap("never", START), "1-5");
  cr_assert_str_eq(gap("never", START + 5), "none");
  cr_assert_str_eq(gap("b", START), "none");
  now++;
  publish(now, "a", "y"); /* a new record hides nothing */
  cr_assert_str_eq(gap("a", START), "1-5");
  cr_assert_str_eq(gap("a", START + 5), "none");
}

Test(store, an_empty_channel_that_gets_a_message_is_not_forgotten) {
  rule("a age=1s");
  config.forget_us = 10 * SECOND;
  prepare();
  publish(START + 1, "a", "x");
  now = START + 2 * SECOND;
  tick(now);
  publish(START + 3 * SECOND, "a", "y");
  now = START + 3500000;
  tick(now);
  cr_assert_str_eq(kept("a"), "3000000:y");
  now = START + 13 * SECOND - 1;
  tick(now);
  cr_assert_eq(figures().forgotten, 0);
  cr_assert_eq(info("a").trim, START + 3 * SECOND);
}

/* While the parent is within a slice the child, as another worker, trims what
 * lies before its next one. */
static int pipes[2][2];

static bool ask_child(void *arg, const stored_s *m) {
  char c = 'x';
  (void)arg;
  add_message(NULL, m);
  if (m->id == START + 2) {
    if (write(pipes[0][1], &c, 1) != 1 || read(pipes[1][0], &c, 1) != 1)
      return false;
    struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
  }
  return true;
}

static pid_t writer(uint64_t first, uint64_t last) {
  cr_assert_eq(pipe(pipes[0]), 0);
  cr_assert_eq(pipe(pipes[1]), 0);
  pid_t pid = fork();
  if (pid)
    return pid;
  alarm(20);
  st = open_slot(1);
  char c = 'y';
  if (!st || read(pipes[0][0], &c, 1) != 1)
    _exit(1);
  for (uint64_t id = first; id <= last; id++) {
    uint64_t committed;
    ring_record_s r = record(id, "a", "y");
    ring_verdict_s v;
    if (ring_side()->ops->begin(ring_side(), &committed))
      _exit(2);
    now = id;
    ring_side()->ops->put(ring_side(), &r, 1, &v);
    if (ring_side()->ops->commit(ring_side(), id))
      _exit(3);
  }
  _exit(write(pipes[1][1], &c, 1) == 1 ? 0 : 4);
}

static int reaped(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

Test(store, a_read_ends_before_a_hole_and_the_next_one_tells_it) {
  rule("a count=5");
  prepare();
  for (unsigned i = 1; i <= 5; i++)
    publish(START + i, "a", "x");
  store_close(st);
  pid_t pid = writer(START + 6, START + 8); /* mark 3 */
  st = open_slot(0);
  text_len = 0;
  store_limit_s limit = {99, 99};
  cr_assert_eq(store_read(st, view_str("a"), START, ALL, limit, ask_child, NULL,
                          &result),
               0);
  cr_assert_eq(reaped(pid), 0);
  cr_assert_str_eq(text, "1:x 2:x");
  cr_assert_eq(result.cursor, START + 2);
  cr_assert(result.has_more);
  cr_assert_eq(result.gap_to, 0);
  cr_assert_str_eq(read_some("a", result.cursor, ALL, 99, 99),
                   "4:x 5:x 6:y 7:y 8:y");
  cr_assert_eq(result.gap_from, START + 3);
  cr_assert_eq(result.gap_to, START + 3);
}

Test(store, a_read_of_all_ends_before_a_hole_too) {
  rule("a count=5");
  prepare();
  for (unsigned i = 1; i <= 5; i++)
    publish(START + i, "a", "x");
  store_close(st);
  pid_t pid = writer(START + 6, START + 8);
  st = open_slot(0);
  text_len = 0;
  store_limit_s limit = {99, 99};
  cr_assert_eq(store_read_all(st, START, ALL, limit, ask_child, NULL, &result),
               0);
  cr_assert_eq(reaped(pid), 0);
  cr_assert_str_eq(text, "1:x 2:x");
  cr_assert(result.has_more);
  read_all(result.cursor, ALL);
  cr_assert_eq(result.gap_from, START + 3);
  cr_assert_eq(result.gap_to, START + 3);
}

/* --- Keys --- */

Test(store, the_same_key_and_body_is_a_duplicate) {
  prepare();
  cr_assert_eq(publish_key(START + 1, "a", "k", "x").verdict, RING_KEPT);
  ring_verdict_s v = publish_key(START + 2, "a", "k", "x");
  cr_assert_eq(v.verdict, RING_DUPLICATE);
  cr_assert_eq(v.other, START + 1);
  cr_assert_eq(publish_key(START + 3, "b", "k", "x").verdict, RING_KEPT);
  cr_assert_eq(publish_key(START + 4, "a", "kk", "x").verdict, RING_KEPT);
  cr_assert_str_eq(kept("a"), "1:x 4:x");
}

Test(store, another_body_under_the_same_key_conflicts) {
  prepare();
  publish_key(START + 1, "a", "k", "x");
  ring_verdict_s v = publish_key(START + 2, "a", "k", "y");
  cr_assert_eq(v.verdict, RING_CONFLICT);
  cr_assert_eq(v.other, START + 1);
  cr_assert_str_eq(kept("a"), "1:x");
}

Test(store, keys_are_decided_within_a_batch) {
  prepare();
  ring_record_s r = record(START + 1, "a", "x");
  r.key = view_str("k");
  begin();
  cr_assert_eq(put(r).verdict, RING_KEPT);
  r.id = START + 2;
  ring_verdict_s v = put(r);
  cr_assert_eq(v.verdict, RING_DUPLICATE);
  cr_assert_eq(v.other, START + 1);
  r.id = START + 3;
  r.body = view_str("y");
  cr_assert_eq(put(r).verdict, RING_CONFLICT);
  commit(START + 3);
  cr_assert_str_eq(kept("a"), "1:x");
}

Test(store, a_key_is_remembered_for_the_window_and_no_longer) {
  config.key_us = 10 * SECOND;
  prepare();
  publish_key(START + 1, "a", "k", "x");
  now = START + 10 * SECOND;
  cr_assert_eq(publish_key(now, "a", "k", "x").verdict, RING_DUPLICATE);
  now++;
  cr_assert_eq(publish_key(now, "a", "k", "y").verdict, RING_KEPT);
  ring_verdict_s v = publish_key(now + 1, "a", "k", "y");
  cr_assert_eq(v.verdict, RING_DUPLICATE);
  cr_assert_eq(v.other, START + 1 + 10 * SECOND);
}

Test(store, a_key_outlives_its_message) {
  rule("a count=1");
  rule("live count=0");
  prepare();
  publish_key(START + 1, "a", "k", "x");
  publish(START + 2, "a", "y");
  delete_channel(START + 3, "a");
  cr_assert_eq(publish_key(START + 4, "a", "k", "x").other, START + 1);
  publish_key(START + 5, "live", "k", "x");
  cr_assert_eq(publish_key(START + 6, "live", "k", "x").other, START + 5);
  cr_assert_eq(publish_key(START + 7, "live", "k", "z").verdict, RING_CONFLICT);
}

Test(store, no_window_no_keys) {
  config.key_us = 0;
  prepare();
  cr_assert_eq(publish_key(START + 1, "a", "k", "x").verdict, RING_KEPT);
  cr_assert_eq(publish_key(START + 2, "a", "k", "y").verdict, RING_KEPT);
  cr_assert_str_eq(kept("a"), "1:x 2:y");
}

Test(store, old_keys_are_swept) {
  config.key_us = SECOND;
  prepare();
  begin();
  for (unsigned i = 1; i <= 2000; i++) {
    char key[16];
    snprintf(key, sizeof key, "k%u", i);
    ring_record_s r = record(START + i, "a", "x");
    r.key = view_str(key);
    put(r);
  }
  commit(START + 2000);
  now = START + 2 * SECOND;
  unsigned ticks = 0;
  for (; store_is_due(st) && ticks < 100; ticks++)
    tick(now + ticks);
  cr_assert_leq(ticks, 5);
  cr_assert_gt(ticks, 1);
}

/* --- Groups --- */

Test(store, a_group_with_a_conflict_is_not_kept_at_all) {
  prepare();
  publish_key(START + 1, "a", "old", "x");
  ring_record_s g[4] = {
      record(START + 2, "a", "1"), record(START + 3, "b", "2"),
      record(START + 4, "a", "3"), record(START + 5, "c", "4")};
  g[1].key = view_str("new");
  g[2].key = view_str("old");
  ring_verdict_s v[4];
  begin();
  ring_side()->ops->put(ring_side(), g, 4, v);
  commit(START + 5);
  for (int i = 0; i < 4; i++) {
    cr_assert_eq(v[i].verdict, RING_CONFLICT);
    cr_assert_eq(v[i].other, i == 2 ? START + 1 : 0);
  }
  cr_assert_str_eq(read_all(START, ALL), "1:a=x");
  cr_assert_eq(publish_key(START + 6, "b", "new", "other").verdict, RING_KEPT,
               "the key of the group that was not kept is free");
}

Test(store, duplicates_within_a_group_are_no_failure) {
  prepare();
  ring_record_s g[3] = {record(START + 1, "a", "x"),
                        record(START + 2, "a", "x"),
                        record(START + 3, "b", "y")};
  g[0].key = g[1].key = view_str("k");
  ring_verdict_s v[3];
  begin();
  ring_side()->ops->put(ring_side(), g, 3, v);
  commit(START + 3);
  cr_assert_eq(v[0].verdict, RING_KEPT);
  cr_assert_eq(v[1].verdict, RING_DUPLICATE);
  cr_assert_eq(v[1].other, START + 1);
  cr_assert_eq(v[2].verdict, RING_KEPT);
  cr_assert_str_eq(read_all(START, ALL), "1:a=x 3:b=y");
}

/* --- After a lap --- */

Test(store, what_became_of_a_message_can_be_told_after_a_lap) {
  ring_verdict_s v;
  prepare();
  publish(START + 1, "a", "x");
  publish_key(START + 2, "a", "k", "y");
  publish_key(START + 3, "a", "k", "y");
  publish_key(START + 4, "a", "k", "z");
  view_s a = view_str("a"), k = view_str("k"), none = {0};
  cr_assert_eq(store_verdict(st, a, START + 1, none, view_str("x"), &v), 0);
  cr_assert_eq(v.verdict, RING_KEPT);
  cr_assert_eq(store_verdict(st, a, START + 9, none, view_str("x"), &v), 0);
  cr_assert_eq(v.verdict, RING_VOID);
  cr_assert_eq(store_verdict(st, a, START + 2, k, view_str("y"), &v), 0);
  cr_assert_eq(v.verdict, RING_KEPT);
  cr_assert_eq(store_verdict(st, a, START + 3, k, view_str("y"), &v), 0);
  cr_assert_eq(v.verdict, RING_DUPLICATE);
  cr_assert_eq(v.other, START + 2);
  cr_assert_eq(store_verdict(st, a, START + 4, k, view_str("z"), &v), 0);
  cr_assert_eq(v.verdict, RING_CONFLICT);
  cr_assert_eq(store_verdict(st, a, START + 4, view_str("q"), none, &v), 0);
  cr_assert_eq(v.verdict, RING_VOID);
}

/* --- Many channels --- */

Test(store, what_a_channel_costs) {
  enum { CHANNELS = 20000 };
  prepare();
  char name[32], body[64];
  memset(body, 'x', sizeof body);
  for (unsigned i = 0; i < CHANNELS; i++) {
    if (i % 100 == 0)
      begin();
    snprintf(name, sizeof name, "user:%06u:inbox", i);
    ring_record_s r = record(START + i + 1, name, "");
    r.body = view_of(body, sizeof body);
    put(r);
    if (i % 100 == 99)
      commit(r.id);
  }
  store_figures_s f = figures();
  cr_assert_eq(f.channels, CHANNELS);
  cr_assert_eq(f.messages, CHANNELS);
  cr_assert_eq(f.bytes, 64 * CHANNELS);
  cr_assert_lt(f.used / CHANNELS, 800, "%ju bytes a channel",
               (uintmax_t)(f.used / CHANNELS));
  cr_assert_not(store_is_due(st), "an idle broker has nothing to do");
}
