/* channels.c - what is known of channels: info, the list, and dropping history.
 */
#include "dialects_internal.h"
#include "json_text.h"
#include <stdlib.h>

#define LIST_USUAL 100
#define LIST_MAX 1000

/* ---- one channel ------------------------------------------------------------
 */

#define INFO_MAX 2048 /* a name grows six-fold at most */

static char *put_number(char *out, view_s name, uint64_t n) {
  out = json_raw(out, name);
  return out + number_write(out, n);
}

static char *put_info(char *out, view_s channel, const engine_info_s *i) {
  out = json_raw(out, VIEW_LIT("{\"channel\":"));
  out = json_string_write(out, channel);
  out = put_number(out, VIEW_LIT(",\"subscribers\":"), i->subscribers);
  out = put_number(out, VIEW_LIT(",\"messages\":"), i->count);
  out = put_number(out, VIEW_LIT(",\"bytes\":"), i->bytes);
  out = put_number(out, VIEW_LIT(",\"first\":"), i->first);
  out = put_number(out, VIEW_LIT(",\"last\":"), i->last);
  out = put_number(out, VIEW_LIT(",\"trim\":"), i->trim);
  out = put_number(out, VIEW_LIT(",\"history\":{\"count\":"), i->history_count);
  out = put_number(out, VIEW_LIT(",\"bytes\":"), i->history_bytes);
  out = put_number(out, VIEW_LIT(",\"age_ms\":"), i->history_age_ms);
  return json_raw(out, VIEW_LIT("}}"));
}

static void on_info(http_s *h, view_s channel) {
  engine_info_s info;
  char body[INFO_MAX];
  const char *fault = channel_name_fault(channel);
  if (fault) {
    http_problem(h, 400, fault, VIEW_LIT(""));
  } else if (pubsub_engine()->info(channel, &info) < 0) {
    http_problem(h, 503, "The history cannot be read now.", VIEW_LIT(""));
  } else if (!info.exists) {
    http_problem(h, 404, "There is no such channel.", VIEW_LIT(""));
  } else {
    char *end = put_info(body, channel, &info);
    http_reply(h, .status = 200, .type = VIEW_LIT("application/json"),
               .body = view_of(body, (size_t)(end - body)));
  }
}

/* ---- the list
 * ------------------------------------------------------------------- */

typedef struct {
  char *text;
  size_t len, cap;
  bool has_failed;
} list_text_s;

static bool add_channel(void *arg, view_s channel, const engine_info_s *info) {
  list_text_s *l = arg;
  if (l->cap - l->len < INFO_MAX + 1) {
    size_t cap = 2 * l->cap + 2 * INFO_MAX;
    char *bigger = realloc(l->text, cap);
    if (!bigger) {
      l->has_failed = true;
      return false;
    }
    l->text = bigger;
    l->cap = cap;
  }
  if (l->len)
    l->text[l->len++] = ',';
  l->len = (size_t)(put_info(l->text + l->len, channel, info) - l->text);
  return true;
}

typedef struct {
  char prefix[768], after[768];
  size_t prefix_len, after_len;
  uint64_t limit;
} list_query_s;

static const char *read_text(view_s value, char *out, size_t *len) {
  if (value.len > 768)
    return "The query has a value that is too long.";
  ssize_t n = http_percent_decode(value, out);
  *len = n < 0 ? 0 : (size_t)n;
  return n < 0 ? "The query has a '%' without two hexadecimal digits." : NULL;
}

static const char *read_limit(view_s value, uint64_t *limit) {
  *limit = 0;
  for (size_t i = 0; i < value.len && i < 6; i++) {
    if (value.data[i] < '0' || value.data[i] > '9')
      return "limit is a number of channels, at least 1.";
    *limit = *limit * 10 + (uint64_t)(value.data[i] - '0');
  }
  if (!*limit || value.len > 6)
    return "limit is a number of channels, at least 1.";
  if (*limit > LIST_MAX)
    *limit = LIST_MAX;
  return NULL;
}

static const char *read_list_query(http_s *h, list_query_s *q) {
  view_s query = http_request(h)->query, name, value;
  const char *fault = NULL;
  while (!fault && http_query_next(&query, &name, &value)) {
    if (view_eq(name, VIEW_LIT("prefix")))
      fault = read_text(value, q->prefix, &q->prefix_len);
    else if (view_eq(name, VIEW_LIT("after")))
      fault = read_text(value, q->after, &q->after_len);
    else if (view_eq(name, VIEW_LIT("limit")))
      fault = read_limit(value, &q->limit);
    else
      fault = "The query has a parameter that is not known here.";
  }
  return fault;
}

static void reply_list(http_s *h, const list_text_s *l, bool has_more) {
  char *body = malloc(l->len + 64);
  if (!body) {
    http_problem(h, 503, "There is no memory now.", VIEW_LIT(""));
    return;
  }
  char *end = json_raw(body, VIEW_LIT("{\"channels\":["));
  end = json_raw(end, view_of(l->text, l->len));
  end = json_raw(end, has_more ? VIEW_LIT("],\"more\":true}")
                               : VIEW_LIT("],\"more\":false}"));
  http_reply(h, .status = 200, .type = VIEW_LIT("application/json"),
             .body = view_of(body, (size_t)(end - body)));
  free(body);
}

static void on_list(http_s *h, view_s segment) {
  (void)segment;
  list_query_s q = {.limit = LIST_USUAL};
  const char *fault = read_list_query(h, &q);
  if (fault) {
    http_problem(h, 400, fault, VIEW_LIT(""));
    return;
  }
  list_text_s l = {.text = NULL};
  int more = pubsub_engine()->list(view_of(q.prefix, q.prefix_len),
                                   view_of(q.after, q.after_len), q.limit,
                                   add_channel, &l);
  if (more < 0 || l.has_failed)
    http_problem(h, 503, "The list cannot be read now.", VIEW_LIT(""));
  else
    reply_list(h, &l, more > 0);
  free(l.text);
}

/* ---- dropping
 * ---------------------------------------------------------------------- */

static void dropped(void *arg, const published_s *p) {
  http_s *h = arg;
  if (p->status == 201)
    http_reply(h, .status = 204);
  else
    http_problem(h, p->status, "The history was not dropped: try again.",
                 VIEW_LIT(""));
}

static void on_delete(http_s *h, view_s channel) {
  const char *fault = channel_name_fault(channel);
  if (!fault && http_request(h)->query.len)
    fault = "The query has a parameter that is not known here.";
  if (fault)
    http_problem(h, 400, fault, VIEW_LIT(""));
  else if (pubsub_engine()->drop(channel, dropped, h) < 0)
    http_problem(h, 503, "The history was not dropped: try again.",
                 VIEW_LIT(""));
}

const http_route_s channels_routes[] = {
    {"GET", "/channels", on_list},
    {"GET", "/channels/*/info", on_info},
    {"DELETE", "/channels/*", on_delete},
    {0},
};
