/* subscribe.c - reads what a subscriber asks for, and hands it to the carrier
 * that it asks for: an upgrade to WebSocket, Accept: text/event-stream, or
 * plain JSON. */
#include "subscribe.h"
#include <stdlib.h>

#define DIGITS 15 /* of a number that is then bounded by its setting */

static bool number_of(view_s text, size_t digits, uint64_t *n) {
  if (!text.len || text.len > digits)
    return false;
  for (*n = 0; text.len; text = view_sub(text, 1, text.len)) {
    if (*text.data < '0' || *text.data > '9')
      return false;
    *n = *n * 10 + (uint64_t)(*text.data - '0');
  }
  return true;
}

static const char *add_name(subscribe_s *ask, view_s name, bool is_pattern) {
  const char *fault =
      is_pattern ? pattern_fault(name) : channel_name_fault(name);
  if (fault)
    return fault;
  if (ask->count == SUBSCRIBE_MAX)
    return "The query names too many channels.";
  ask->names[ask->count++] = name;
  ask->has_pattern |= is_pattern;
  return NULL;
}

static const char *take_parameter(subscribe_s *ask, view_s name, view_s value,
                                  unsigned *seen) {
  static const view_s once[] = {VIEW_INIT("since"), VIEW_INIT("limit"),
                                VIEW_INIT("wait")};
  for (unsigned i = 0; i < sizeof once / sizeof *once; i++) {
    if (!view_eq(name, once[i]))
      continue;
    if (*seen >> i & 1)
      return "The query has a parameter twice.";
    *seen |= 1u << i;
  }
  if (view_eq(name, once[0]))
    return since_read(value, &ask->since)
               ? NULL
               : "since is an id, 'first', 'now' or -N.";
  if (view_eq(name, once[1]))
    return number_of(value, DIGITS, &ask->limit) && ask->limit
               ? NULL
               : "limit is a number of messages, at least 1.";
  if (view_eq(name, once[2])) {
    bool is_number = number_of(value, DIGITS, &ask->wait_ms);
    ask->wait_ms *= 1000;
    return is_number ? NULL : "wait is a number of seconds.";
  }
  if (ask->is_many && view_eq(name, VIEW_LIT("channel")))
    return add_name(ask, value, false);
  if (ask->is_many && view_eq(name, VIEW_LIT("pattern")))
    return add_name(ask, value, true);
  return "The query has a parameter that is not known here.";
}

/* NULL, or what is wrong. `room` is for what the query says, decoded. */
static const char *read_query(http_s *h, subscribe_s *ask, char *room) {
  view_s query = http_request(h)->query, name, value;
  unsigned seen = 0;
  while (http_query_next(&query, &name, &value)) {
    ssize_t n = http_percent_decode(value, room);
    if (n < 0)
      return "The query has a '%' without two hexadecimal digits.";
    const char *fault =
        take_parameter(ask, name, view_of(room, (size_t)n), &seen);
    if (fault)
      return fault;
    room += n;
  }
  view_s last = http_header(http_request(h), VIEW_LIT("Last-Event-ID"));
  if (last.len && !since_read(last, &ask->since))
    return "Last-Event-ID is an id.";
  return NULL;
}

static void dispatch(http_s *h, subscribe_s *ask) {
  const http_request_s *req = http_request(h);
  if (req->wants_upgrade)
    native_start(h, ask);
  else if (http_accepts_exactly(http_header(req, VIEW_LIT("Accept")),
                                VIEW_LIT("text/event-stream")))
    events_start(h, ask);
  else
    history_start(h, ask);
}

static void start(http_s *h, subscribe_s *ask) {
  char *room = malloc(http_request(h)->query.len + 1);
  const char *fault = room ? read_query(h, ask, room) : NULL;
  if (!room)
    http_problem(h, 503, "There is no memory now.", VIEW_LIT(""));
  else if (fault)
    http_problem(h, 400, fault, VIEW_LIT(""));
  else
    dispatch(h, ask);
  free(room);
}

static void on_channel(http_s *h, view_s channel) {
  subscribe_s ask = {.since = {.what = SINCE_NOW}};
  const char *fault = add_name(&ask, channel, false);
  if (fault)
    http_problem(h, 400, fault, VIEW_LIT(""));
  else
    start(h, &ask);
}

static void on_many(http_s *h, view_s segment) {
  (void)segment;
  subscribe_s ask = {.since = {.what = SINCE_NOW}, .is_many = true};
  start(h, &ask);
}

const http_route_s subscribe_routes[] = {
    {"GET", "/channels/*", on_channel},
    {"GET", "/subscribe", on_many},
    {0},
};
