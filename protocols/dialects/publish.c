/* publish.c - POST /channels/{name}: an application publishes a message.
 *
 * The answer comes when the message has its id and its place: 201 with the id
 * and how many subscribers the channel has, on all workers. */
#include "dialects_internal.h"
#include <errno.h>
#include <stdlib.h>

#define EVENT_MAX 255

/* A publish that waits for its answer. */
typedef struct {
  http_s *http;
  uint8_t name_len;
  char name[255];
} waiting_s;

static waiting_s *spare; /* chained by .http */

static waiting_s *waiting_new(http_s *h, view_s name) {
  waiting_s *w = spare;
  if (w)
    spare = (waiting_s *)(void *)w->http;
  else if (!(w = malloc(sizeof *w)))
    return NULL;
  w->http = h;
  w->name_len = (uint8_t)name.len;
  memcpy(w->name, name.data, name.len);
  return w;
}

static void waiting_free(waiting_s *w) {
  w->http = (http_s *)(void *)spare;
  spare = w;
}

static size_t put(char *out, size_t at, view_s text) {
  memcpy(out + at, text.data, text.len);
  return at + text.len;
}

static void reply_published(waiting_s *w, const published_s *p) {
  char body[2048]; /* a name grows six-fold at most by escapes */
  size_t n = put(body, 0, VIEW_LIT("{\"id\":"));
  n += number_write(body + n, p->id);
  n = put(body, n, VIEW_LIT(",\"channel\":\""));
  n += http_json_escape(body + n, sizeof body - n - 64,
                        view_of(w->name, w->name_len));
  n = put(body, n, VIEW_LIT("\",\"subscribers\":"));
  n += number_write(body + n, p->subscribers);
  n = put(body, n, VIEW_LIT("}"));
  http_reply(w->http, .status = 201, .type = VIEW_LIT("application/json"),
             .body = view_of(body, n));
}

static void published(void *arg, const published_s *p) {
  waiting_s *w = arg;
  if (p->status == 201)
    reply_published(w, p);
  else
    http_problem(w->http, p->status,
                 "The message was not published: try again.", VIEW_LIT(""));
  waiting_free(w);
}

static bool has_line_end(view_s v) {
  for (size_t i = 0; i < v.len; i++)
    if (v.data[i] == '\r' || v.data[i] == '\n' || v.data[i] == '\0')
      return true;
  return false;
}

/* What the query asks for. NULL, or what is wrong with it. */
static const char *read_query(http_s *h, message_s *m, char *event) {
  static const view_s known[] = {VIEW_INIT("event"), VIEW_INIT("ttl")};
  static const view_s reserved[] = {VIEW_INIT("gap"), VIEW_INIT("binary"),
                                    VIEW_INIT("drain"), VIEW_INIT("message")};
  const char *fault = query_fault(h, known, 2);
  if (fault)
    return fault;
  ssize_t n = query_value(h, known[0], event, EVENT_MAX * 3);
  if (n > EVENT_MAX)
    return "An event's name has at most 255 bytes.";
  m->event = view_of(event, n > 0 ? (size_t)n : 0);
  if (has_line_end(m->event))
    return "An event's name has no line ends and no NUL.";
  for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
    if (view_eq(m->event, reserved[i]))
      return "This event's name is reserved.";
  char ttl[16];
  n = query_value(h, known[1], ttl, sizeof ttl);
  for (ssize_t i = 0; i < n; i++)
    if (ttl[i] < '0' || ttl[i] > '9')
      return "ttl is a number of seconds.";
  return NULL;
}

static void publish(http_s *h, view_s channel) {
  const http_request_s *req = http_request(h);
  char event[EVENT_MAX * 3];
  message_s m = {.channel = channel, .data = req->body};
  const char *fault = channel_name_fault(channel);
  if (!fault)
    fault = read_query(h, &m, event);
  if (!fault && http_header_times(req, VIEW_LIT("Content-Type")) > 1)
    fault = "Content-Type is there twice.";
  if (!fault)
    fault = message_classify(&m, http_header(req, VIEW_LIT("Content-Type")));
  if (fault) {
    http_problem(h, 400, fault, VIEW_LIT(""));
    return;
  }
  if (http_header_times(req, VIEW_LIT("Idempotency-Key"))) {
    http_problem(h, 501, "Idempotency-Key is not served by this version.",
                 VIEW_LIT(""));
    return;
  }
  if (!req->has_length && !req->chunked) {
    http_problem(h, 411, "A message needs Content-Length or chunked coding.",
                 VIEW_LIT(""));
    return;
  }
  waiting_s *w = waiting_new(h, channel);
  if (w && pubsub_publish(&m, published, w) == 0)
    return;
  int error = w ? errno : ENOMEM;
  if (w)
    waiting_free(w);
  if (error == EMSGSIZE)
    http_problem(h, 413, "The message is too long.", VIEW_LIT(""));
  else
    http_problem(h, 503, "There is no room for the message now: try again.",
                 VIEW_LIT(""));
}

const http_route_s publish_routes[] = {
    {"POST", "/channels/*", publish},
    {0},
};
