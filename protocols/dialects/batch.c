/* batch.c - POST /channels: many messages, all or none.
 *
 * The body is NDJSON or a JSON array of objects: "channel" or "channels",
 * "data" or "data64", "type", "event", "key", "ttl". One answer, with one
 * result for each message in order. Invariant: nothing is published before all
 * of it was found right. */
#include "content.h"
#include "facil/json_check.h"
#include <errno.h>
#include <stdlib.h>

typedef struct {
  http_s *http;
  message_s *messages;
  content_s *contents; /* one an item: the bytes of its messages */
  json_t **items;
  size_t count, item_count, cap, item_cap, answered;
  published_s *results;
} batch_s;

static void batch_free(batch_s *b) {
  for (size_t i = 0; i < b->item_count; i++) {
    content_free(&b->contents[i]);
    json_decref(b->items[i]);
  }
  free(b->messages);
  free(b->contents);
  free(b->items);
  free(b->results);
  free(b);
}

/* ---- reading ----------------------------------------------------------------
 */

static const char *add_message(batch_s *b, const message_s *m, json_t *name) {
  if (!json_is_string(name))
    return "A channel's name is a string.";
  message_s one = *m;
  one.channel = view_of(json_string_value(name), json_string_length(name));
  const char *fault = channel_name_fault(one.channel);
  if (fault)
    return fault;
  if (b->count == b->cap)
    return "The batch has too many messages.";
  b->messages[b->count++] = one;
  return NULL;
}

static const char *add_item(batch_s *b, view_s text) {
  if (b->item_count == b->item_cap)
    return "The batch has too many messages.";
  content_s *c = &b->contents[b->item_count];
  json_t *item = b->items[b->item_count] = content_load(text, c);
  b->item_count++;
  if (!json_is_object(item))
    return "An item of a batch is a JSON object.";
  const char *fault = content_read(item, c);
  if (fault)
    return fault;
  json_t *one = json_object_get(item, "channel");
  json_t *many = json_object_get(item, "channels");
  if (!one == !many || (many && !json_is_array(many)))
    return "An item has either channel or an array of channels.";
  if (one)
    return add_message(b, &c->message, one);
  size_t i;
  json_t *name;
  json_array_foreach(many, i, name) {
    fault = add_message(b, &c->message, name);
    if (fault)
      return fault;
  }
  return json_array_size(many) ? NULL : "channels names none.";
}

/* Each line that is not empty is an item. */
static const char *read_lines(batch_s *b, view_s body) {
  while (body.len) {
    const char *end = memchr(body.data, '\n', body.len);
    size_t len = end ? (size_t)(end - body.data) : body.len;
    view_s line = view_sub(body, 0, len);
    body = view_sub(body, len + 1, body.len);
    if (line.len && line.data[line.len - 1] == '\r')
      line.len--;
    if (!view_trim(line).len)
      continue;
    const char *fault = json_fault(line);
    if (!fault)
      fault = add_item(b, line);
    if (fault)
      return fault;
  }
  return NULL;
}

static const char *read_array(batch_s *b, view_s body) {
  const char *fault = json_fault(body);
  view_s item, rest = body;
  while (!fault && json_element(&rest, &item))
    fault = add_item(b, item);
  return fault;
}

static bool is_array(view_s body) {
  for (size_t i = 0; i < body.len; i++)
    if (!strchr(" \t\r\n", body.data[i]))
      return body.data[i] == '[';
  return false;
}

/* ---- the answer
 * ---------------------------------------------------------------- */

static void reply(batch_s *b) {
  size_t cap = 64;
  for (size_t i = 0; i < b->count; i++)
    cap += 6 * b->messages[i].channel.len + 128;
  char *body = malloc(cap), *out = body;
  if (!body) {
    http_problem(b->http, 503, "There is no memory now.", VIEW_LIT(""));
    return;
  }
  out = json_raw(out, VIEW_LIT("{\"results\":["));
  for (size_t i = 0; i < b->count; i++) {
    out = json_raw(out, i ? VIEW_LIT(",{\"id\":") : VIEW_LIT("{\"id\":"));
    out += number_write(out, b->results[i].id);
    out = json_raw(out, VIEW_LIT(",\"channel\":"));
    out = json_string_write(out, b->messages[i].channel);
    out = json_raw(out, VIEW_LIT(",\"subscribers\":"));
    out += number_write(out, b->results[i].subscribers);
    *out++ = '}';
  }
  out = json_raw(out, VIEW_LIT("]}"));
  http_reply(b->http, .status = 200, .type = VIEW_LIT("application/json"),
             .body = view_of(body, (size_t)(out - body)));
  free(body);
}

static void published(void *arg, const published_s *p) {
  batch_s *b = arg;
  b->results[p->index] = *p;
  if (++b->answered < b->count)
    return;
  int status = 201;
  for (size_t i = 0; i < b->count; i++)
    if (b->results[i].status != 201)
      status = b->results[i].status;
  if (status == 201)
    reply(b);
  else
    http_problem(b->http, status, publish_fault(status), VIEW_LIT(""));
  batch_free(b);
}

static batch_s *batch_new(http_s *h) {
  size_t cap = dialect_settings.batch_max;
  batch_s *b = calloc(1, sizeof *b);
  if (!b)
    return NULL;
  b->http = h;
  b->cap = b->item_cap = cap;
  b->messages = calloc(cap, sizeof *b->messages);
  b->contents = calloc(cap, sizeof *b->contents);
  b->items = calloc(cap, sizeof *b->items);
  b->results = calloc(cap, sizeof *b->results);
  if (b->messages && b->contents && b->items && b->results)
    return b;
  batch_free(b);
  return NULL;
}

static void on_batch(http_s *h, view_s segment) {
  (void)segment;
  const http_request_s *req = http_request(h);
  batch_s *b = batch_new(h);
  if (!b) {
    http_problem(h, 503, "There is no memory now.", VIEW_LIT(""));
    return;
  }
  const char *fault = req->query.len
                          ? "The query has a parameter that is not known here."
                      : is_array(req->body) ? read_array(b, req->body)
                                            : read_lines(b, req->body);
  if (!fault && !b->count)
    fault = "The batch is empty.";
  if (fault) {
    http_problem(h, 400, fault, VIEW_LIT(""));
  } else if (pubsub_publish_group(b->messages, b->count, published, b) == 0) {
    return; /* it is the answer's now */
  } else if (errno == EMSGSIZE) {
    http_problem(h, 413, "The batch is too large.", VIEW_LIT(""));
  } else {
    http_problem(h, 503, publish_fault(503), VIEW_LIT(""));
  }
  batch_free(b);
}

const http_route_s batch_routes[] = {
    {"POST", "/channels", on_batch},
    {0},
};
