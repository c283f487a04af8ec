/* rules.h - what is kept of a channel: history rules per channel pattern.
 *
 * A pattern is a channel's name in which `*` as a whole part stands for one
 * part (one or more bytes without `:` and `/`), and a final part `**` for all
 * the rest (one or more bytes). The first rule whose pattern matches decides;
 * where none does, the usual one. Rules are made at start and never change
 * while they are used: any thread and, after a fork, any process may look.
 * Private to src/broker. */
#ifndef BROKER_RULES_H
#define BROKER_RULES_H

#include <facil/base.h>
#include <facil/view.h>

typedef enum { RULE_SKIP, RULE_CLOSE } rule_slow_e;

typedef struct {
  uint64_t count;  /* messages kept; 0: no history */
  uint64_t bytes;  /* of bodies kept; 0: as many as `count` allows */
  uint64_t age_us; /* how long they are kept; 0: no limit */
  rule_slow_e slow;
} rule_s;

typedef struct rules_s rules_s;

/* No rules but the usual one, which is copied. NULL and ENOMEM. */
FACIL_MUST_CHECK rules_s *rules_new(const rule_s *usual);
void rules_free(rules_s *rules); /* NULL is fine */

/* Add `PATTERN count=N bytes=SIZE age=DURATION slow=skip|close` behind those
 * that are there. What is not named is as usual. Sizes and durations take the
 * units of settings (config.h). -1 and EINVAL, with one line in `err` without
 * its end; or ENOMEM. */
FACIL_MUST_CHECK int rules_add(rules_s *rules, const char *text, char *err,
                               size_t err_len);

/* What decides for `channel`; never NULL, lives as long as the rules. */
const rule_s *rules_find(const rules_s *rules, view_s channel);

/* Whether the history of every channel that `pattern` matches is kept. False in
 * doubt: where no single rule decides for all of them. */
bool rules_keep_all(const rules_s *rules, view_s pattern);

/* The shortest age of any rule: nothing younger is ever too old. UINT64_MAX:
 * no rule has one. */
uint64_t rules_shortest_age(const rules_s *rules);

/* Whether `pattern` is one, and whether it matches. */
bool rules_is_pattern(view_s pattern);
bool rules_match(view_s pattern, view_s channel);

#endif
