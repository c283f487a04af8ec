/* replay.h - what is kept above a cursor, as a piece of a JSON object. Private
 * to dialects. */
#ifndef CRIER_REPLAY_H
#define CRIER_REPLAY_H

#include "dialects_internal.h"

typedef struct {
  uint64_t id;
  size_t start, end; /* in the text */
} replay_item_s;

/* All zero to begin with, but for is_new; replay_free in any case. */
typedef struct {
  char *text;
  size_t len, cap;
  replay_item_s *items;
  size_t count, item_cap;
  view_s pattern; /* only what it matches; empty: everything */
  bool is_new;    /* who asks had nothing yet: what is gone is no gap */
  bool has_failed;
  uint64_t gap_from, gap_to; /* gap_to 0: none */
  uint64_t cursor;
  bool has_more;
} replay_s;

/* Gather what lies above `since` on the channels and patterns, each id once, in
 * order. With `since` 0 what is gone is no gap. -1: it cannot be read now. */
FACIL_MUST_CHECK int replay_read(const view_s *names, size_t count,
                                 uint64_t since, engine_limit_s limit,
                                 replay_s *out);
void replay_free(replay_s *r);

/* `"messages":[…],"cursor":N,"gap":…,"more":…`, without braces: at most
 * replay_json_max bytes. Returns the end. */
size_t replay_json_max(const replay_s *r);
char *replay_json_write(char *out, const replay_s *r);

#endif
