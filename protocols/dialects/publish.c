/* publish.c - POST /channels/{name}: an application publishes a message.
 *
 * The answer comes when the message has its id and its place: 201 with the id
 * and how many subscribers the channel has, on all workers. */
#include "dialects_internal.h"
#include "facil/utf8.h"
#include <errno.h>
#include <stdlib.h>

#define EVENT_MAX 255
#define KEY_MAX 128
#define TTL_DIGITS 9
#define QUERY_VALUE_MAX (EVENT_MAX * 3) /* as it is written */

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

const char *publish_fault(int status) {
  if (status == 422)
    return "Another message was published under this idempotency key.";
  if (status == 507)
    return "The history is full.";
  return "The message was not published: try again.";
}

static void published(void *arg, const published_s *p) {
  waiting_s *w = arg;
  if (p->status == 201)
    reply_published(w, p);
  else
    http_problem(w->http, p->status, publish_fault(p->status), VIEW_LIT(""));
  waiting_free(w);
}

static bool has_line_end(view_s v) {
  for (size_t i = 0; i < v.len; i++)
    if (v.data[i] == '\r' || v.data[i] == '\n' || v.data[i] == '\0')
      return true;
  return false;
}

/* Also for what comes in other ways than by a query. */
const char *event_fault(view_s event) {
  static const view_s reserved[] = {VIEW_INIT("gap"), VIEW_INIT("binary"),
                                    VIEW_INIT("drain"), VIEW_INIT("message")};
  if (event.len > EVENT_MAX)
    return "An event's name has at most 255 bytes.";
  if (has_line_end(event))
    return "An event's name has no line ends and no NUL.";
  if (!utf8_is_valid(event)) /* it becomes part of text */
    return "An event's name is UTF-8.";
  for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
    if (view_eq(event, reserved[i]))
      return "This event's name is reserved.";
  return NULL;
}

static const char *read_ttl(view_s text, uint32_t *ttl) {
  bool is_number = text.len > 0 && text.len <= TTL_DIGITS;
  uint32_t n = 0;
  for (size_t i = 0; is_number && i < text.len; i++) {
    is_number = text.data[i] >= '0' && text.data[i] <= '9';
    n = n * 10 + (uint32_t)(text.data[i] - '0');
  }
  *ttl = n;
  return is_number && n ? NULL : "ttl is a number of seconds, at least 1.";
}

/* It is compared byte by byte, and may stand in logs of others: text. */
const char *key_fault(view_s key) {
  bool is_text = key.len >= 1 && key.len <= KEY_MAX;
  for (size_t i = 0; is_text && i < key.len; i++)
    is_text = key.data[i] >= ' ' && key.data[i] <= '~';
  return is_text ? NULL : "An idempotency key is text of 1 to 128 bytes.";
}

/* What the query asks for; `room` is for what it says, decoded. NULL, or what
 * is wrong with it. */
static const char *read_query(http_s *h, message_s *m, char *room) {
  view_s query = http_request(h)->query, name, value;
  bool has_event = false, has_ttl = false;
  while (http_query_next(&query, &name, &value)) {
    if (value.len > QUERY_VALUE_MAX)
      return "The query has a value that is too long.";
    ssize_t n = http_percent_decode(value, room);
    if (n < 0)
      return "The query has a '%' without two hexadecimal digits.";
    view_s text = view_of(room, (size_t)n);
    const char *fault = "The query has a parameter that is not known here, or "
                        "one twice.";
    if (view_eq(name, VIEW_LIT("event")) && !has_event) {
      has_event = true;
      m->event = text;
      room += n; /* is kept */
      fault = event_fault(text);
    } else if (view_eq(name, VIEW_LIT("ttl")) && !has_ttl) {
      has_ttl = true;
      fault = read_ttl(text, &m->ttl_s);
    }
    if (fault)
      return fault;
  }
  return NULL;
}

static const char *read_key(const http_request_s *req, message_s *m) {
  size_t times = http_header_times(req, VIEW_LIT("Idempotency-Key"));
  if (!times)
    return NULL;
  m->key = http_header(req, VIEW_LIT("Idempotency-Key"));
  return times > 1 ? "Idempotency-Key is there twice." : key_fault(m->key);
}

static void publish(http_s *h, view_s channel) {
  const http_request_s *req = http_request(h);
  char room[2 * QUERY_VALUE_MAX];
  message_s m = {.channel = channel, .data = req->body};
  if (!req->has_length && !req->chunked) {
    http_problem(h, 411, "A message needs Content-Length or chunked coding.",
                 VIEW_LIT(""));
    return;
  }
  const char *fault = channel_name_fault(channel);
  if (!fault)
    fault = read_query(h, &m, room);
  if (!fault && http_header_times(req, VIEW_LIT("Content-Type")) > 1)
    fault = "Content-Type is there twice.";
  if (!fault)
    fault = message_classify(&m, http_header(req, VIEW_LIT("Content-Type")));
  if (!fault)
    fault = read_key(req, &m);
  if (fault) {
    http_problem(h, 400, fault, VIEW_LIT(""));
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
