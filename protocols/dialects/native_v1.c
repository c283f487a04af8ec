/* native_v1.c - crier.v1: one JSON object a text frame, both ways.
 *
 * A command is answered, in order, with its `ref` if it has one; what cannot be
 * done is an `error`, and the connection stays. Messages come as frames of the
 * tails; answers, gaps and cursors go through the connection's own queue. */
#include "facil/json_check.h"
#include "json_text.h"
#include "native.h"
#include <errno.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>

#define CLOSE_SLOW 4000

typedef struct {
  reader_s reader; /* first */
} v1_s;

static v1_s *v1_of(websocket_s *ws) {
  return websocket_user(ws);
}

/* ---- messages as frames ------------------------------------------------ */

/* {"op":"message","channel":C,"id":N,"type":T,"data":D,"event":E} */
static size_t object_size(const message_s *m) {
  char id[NUMBER_MAX];
  size_t n = sizeof "{\"op\":\"message\",\"channel\":,\"id\":,\"type\":,}" - 1;
  n += json_string_size(m->channel) + number_write(id, m->id) +
       json_string_size(m->type);
  if (m->kind == MESSAGE_BINARY)
    n += sizeof "\"data64\":" - 1 + json_base64_size(m->data);
  else if (m->kind == MESSAGE_TEXT)
    n += sizeof "\"data\":" - 1 + json_string_size(m->data);
  else
    n += sizeof "\"data\":" - 1 + m->data.len;
  if (m->event.len)
    n += sizeof ",\"event\":" - 1 + json_string_size(m->event);
  return n;
}

static void object_write(const message_s *m, char *out) {
  out = json_raw(out, VIEW_LIT("{\"op\":\"message\",\"channel\":"));
  out = json_string_write(out, m->channel);
  out = json_raw(out, VIEW_LIT(",\"id\":"));
  out += number_write(out, m->id);
  out = json_raw(out, VIEW_LIT(",\"type\":"));
  out = json_string_write(out, m->type);
  if (m->kind == MESSAGE_BINARY) {
    out = json_raw(out, VIEW_LIT(",\"data64\":"));
    out = json_base64_write(out, m->data);
  } else {
    out = json_raw(out, VIEW_LIT(",\"data\":"));
    out = m->kind == MESSAGE_TEXT ? json_string_write(out, m->data)
                                  : json_raw(out, m->data);
  }
  if (m->event.len) {
    out = json_raw(out, VIEW_LIT(",\"event\":"));
    out = json_string_write(out, m->event);
  }
  json_raw(out, VIEW_LIT("}"));
}

static size_t frame_size(const message_s *m) {
  size_t n = object_size(m);
  return ws_frame_head_size(n) + n;
}

static void frame_write(const message_s *m, char *out) {
  char head[WS_FRAME_HEAD_MAX];
  size_t n = ws_frame_head(head, WS_FIN_TEXT, object_size(m));
  memcpy(out, head, n);
  object_write(m, out + n);
}

/* ---- answers ----------------------------------------------------------- */

/* Write an object; takes it over. `ref` is the command's, borrowed, or NULL. */
static void answer(websocket_s *ws, json_t *object, json_t *ref) {
  if (object && ref)
    json_object_set(object, "ref", ref);
  char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
  json_decref(object);
  if (!text) {
    sock_abort(websocket_uuid(ws), "out of memory");
    return;
  }
  websocket_write(ws, view_str(text), true);
  free(text);
}

static void answer_error(websocket_s *ws, const char *code, const char *detail,
                         json_t *ref) {
  answer(ws,
         json_pack("{s:s, s:s, s:s}", "op", "error", "code", code, "detail",
                   detail),
         ref);
}

static json_t *gap_object(uint64_t from, uint64_t to) {
  return json_pack("{s:I, s:I}", "from", (json_int_t)from, "to",
                   (json_int_t)to);
}

static void v1_on_gap(reader_s *r, view_s channel, uint64_t from, uint64_t to) {
  websocket_s *ws = websocket_of(r);
  if (dialect_settings.slow_closes) {
    websocket_close(ws, CLOSE_SLOW, VIEW_LIT("slow"));
    return;
  }
  answer(ws,
         json_pack("{s:s, s:s%, s:I, s:I}", "op", "gap", "channel",
                   channel.data, channel.len, "from", (json_int_t)from, "to",
                   (json_int_t)to),
         NULL);
}

static const reader_kind_s v1_kind = {frame_size, frame_write, v1_on_gap};

/* A command as it was read. */
typedef struct {
  size_t len;   /* of the frame */
  json_t *json; /* what stands for "data" is null here unless it is a string */
  json_t *ref;  /* borrowed, or NULL */
  view_s data;  /* the value of "data" as it stands in the frame; empty: none */
} command_s;

/* ---- commands ---------------------------------------------------------- */

/* The command's channel, checked. False: it has been answered. */
static bool channel_of(websocket_s *ws, const command_s *cmd, view_s *name) {
  json_t *channel = json_object_get(cmd->json, "channel");
  const char *fault = "A channel's name is a string.";
  if (json_is_string(channel)) {
    *name = view_of(json_string_value(channel), json_string_length(channel));
    fault = channel_name_fault(*name);
  }
  if (fault)
    answer_error(ws, "bad_channel", fault, cmd->ref);
  return !fault;
}

static bool since_of(json_t *cmd, native_since_s *since) {
  json_t *j = json_object_get(cmd, "since");
  *since = (native_since_s){.is_now = true};
  if (!j)
    return true;
  if (json_is_integer(j) && json_integer_value(j) >= 0) {
    *since =
        (native_since_s){.is_id = true, .id = (uint64_t)json_integer_value(j)};
    return true;
  }
  if (json_is_integer(j)) {
    *since = (native_since_s){0};
    return true;
  }
  return json_is_string(j) &&
         native_since(view_of(json_string_value(j), json_string_length(j)),
                      since);
}

static void subscribe(websocket_s *ws, view_s name, const native_since_s *since,
                      json_t *ref) {
  uint64_t cursor, from, to;
  if (reader_subscribe(&v1_of(ws)->reader, name, &cursor) < 0 &&
      errno != EEXIST) {
    if (errno == ENOSPC)
      answer_error(ws, "too_many", "channels.per_connection is reached.", ref);
    else
      answer_error(ws, "unavailable", "There is no memory now.", ref);
    return;
  }
  json_t *gap = native_gap(since, cursor, &from, &to) ? gap_object(from, to)
                                                      : json_null();
  answer(ws,
         json_pack("{s:s, s:s%, s:I, s:o, s:b, s:[]}", "op", "subscribed",
                   "channel", name.data, name.len, "cursor", (json_int_t)cursor,
                   "gap", gap, "more", 0, "messages"),
         ref);
}

static void on_subscribe(websocket_s *ws, const command_s *cmd) {
  view_s name;
  native_since_s since;
  if (json_object_get(cmd->json, "pattern"))
    answer_error(ws, "not_served", "Patterns are not served by this version.",
                 cmd->ref);
  else if (!since_of(cmd->json, &since))
    answer_error(ws, "bad_request", "since is an id, 'first', 'now' or -N.",
                 cmd->ref);
  else if (channel_of(ws, cmd, &name))
    subscribe(ws, name, &since, cmd->ref);
}

static void on_unsubscribe(websocket_s *ws, const command_s *cmd) {
  view_s name;
  if (!channel_of(ws, cmd, &name))
    return;
  if (reader_unsubscribe(&v1_of(ws)->reader, name) < 0)
    answer_error(ws, "not_subscribed", "There is no such subscription.",
                 cmd->ref);
  else
    answer(ws,
           json_pack("{s:s, s:s%}", "op", "unsubscribed", "channel", name.data,
                     name.len),
           cmd->ref);
}

/* ---- publish ----------------------------------------------------------- */

/* A publish that waits for its id. */
typedef struct {
  intptr_t uuid;
  json_t *ref, *channel;
  size_t size; /* of the answer, about */
} waiting_s;

/* It holds the channel's name and the ref, which the command has too. */
static size_t answer_size(const command_s *cmd) {
  size_t data64 = json_string_length(json_object_get(cmd->json, "data64"));
  return 64 + cmd->len - cmd->data.len - (data64 < cmd->len ? data64 : 0);
}

static void waiting_free(waiting_s *w) {
  if (!w)
    return;
  json_decref(w->ref);
  json_decref(w->channel);
  free(w);
}

static void published(void *arg, const published_s *p) {
  waiting_s *w = arg;
  websocket_s *ws = websocket_find(w->uuid);
  if (ws)
    websocket_owe(ws, w->size, false);
  if (ws && p->status == 201)
    answer(ws,
           json_pack("{s:s, s:O, s:I}", "op", "published", "channel",
                     w->channel, "id", (json_int_t)p->id),
           w->ref);
  else if (ws)
    answer_error(ws, "unavailable", "The message was not published: try again.",
                 w->ref);
  waiting_free(w);
}

static int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z')
    return c - 'A';
  if (c >= 'a' && c <= 'z')
    return c - 'a' + 26;
  if (c >= '0' && c <= '9')
    return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Padded, and the bits that stand for nothing are 0 (RFC 4648 section 3.5): so
 * bytes have one form only. `*padding` is how much there is. */
static bool is_base64(view_s text, size_t *padding) {
  size_t n = text.len;
  *padding = 0;
  if (n % 4 || !n)
    return !n;
  while (*padding < 2 && text.data[n - 1] == '=') {
    ++*padding;
    n--;
  }
  for (size_t i = 0; i < n; i++)
    if (base64_digit(text.data[i]) < 0)
      return false;
  int unused = *padding == 0 ? 0 : *padding == 1 ? 3 : 15;
  return !(base64_digit(text.data[n - 1]) & unused);
}

/* malloc'ed bytes. NULL: it is no base64, or there is no memory. */
static char *base64_read(view_s text, size_t *len) {
  size_t padding;
  if (text.len > INT32_MAX || !is_base64(text, &padding))
    return NULL;
  char *out = malloc(text.len / 4 * 3 + 1);
  if (!out)
    return NULL;
  int n = EVP_DecodeBlock((unsigned char *)out,
                          (const unsigned char *)text.data, (int)text.len);
  *len = n < 0 ? 0 : (size_t)n - padding; /* the library counts it */
  return out;
}

/* What is published, and the bytes that it lies in. */
typedef struct {
  message_s message;
  char *owned; /* malloc'ed, or NULL: they lie in the command */
} content_s;

static const char *data64_of(json_t *data64, content_s *c) {
  size_t len = 0;
  if (json_is_string(data64))
    c->owned = base64_read(
        view_of(json_string_value(data64), json_string_length(data64)), &len);
  if (!c->owned)
    return "data64 is base64.";
  c->message.data = view_of(c->owned, len);
  return NULL;
}

/* A string travels as its characters unless it is announced as JSON; every
 * other value is JSON, and travels as it stands in the command. */
static const char *data_of(json_t *data, view_s raw, bool as_json,
                           content_s *c) {
  bool as_text = json_is_string(data) && !as_json;
  c->message.data =
      as_text ? view_of(json_string_value(data), json_string_length(data))
              : raw;
  return as_text || raw.len ? NULL : "The name of data has no escapes.";
}

static bool is_json_type(view_s type) {
  message_s probe = {.data = VIEW_LIT("null")};
  return type.len && !message_classify(&probe, type) &&
         probe.kind == MESSAGE_JSON;
}

static const char *content_of(json_t *cmd, view_s raw, content_s *c) {
  json_t *data = json_object_get(cmd, "data");
  json_t *data64 = json_object_get(cmd, "data64");
  json_t *type = json_object_get(cmd, "type");
  if ((type && !json_is_string(type)) || !data == !data64)
    return "A publish has data or data64, and type is a string.";
  view_s media =
      type ? view_of(json_string_value(type), json_string_length(type))
           : VIEW_LIT("");
  const char *fault = data64 ? data64_of(data64, c)
                             : data_of(data, raw, is_json_type(media), c);
  if (fault)
    return fault;
  if (!media.len && data64)
    media = VIEW_LIT("application/octet-stream");
  if (!media.len)
    media = json_is_string(data) ? VIEW_LIT("text/plain")
                                 : VIEW_LIT("application/json");
  return message_classify(&c->message, media);
}

static const char *event_of(json_t *cmd, message_s *m) {
  json_t *event = json_object_get(cmd, "event");
  if (!event)
    return NULL;
  if (!json_is_string(event))
    return "An event's name is a string.";
  m->event = view_of(json_string_value(event), json_string_length(event));
  return event_fault(m->event);
}

static void publish(websocket_s *ws, const content_s *c, const command_s *cmd) {
  waiting_s *w = malloc(sizeof *w);
  if (w)
    *w = (waiting_s){websocket_uuid(ws), json_incref(cmd->ref),
                     json_incref(json_object_get(cmd->json, "channel")),
                     answer_size(cmd)};
  if (w && pubsub_publish(&c->message, published, w) == 0) {
    websocket_owe(ws, w->size, true);
    return;
  }
  bool too_big = w && errno == EMSGSIZE;
  waiting_free(w);
  if (too_big)
    answer_error(ws, "too_big", "The message is too long.", cmd->ref);
  else
    answer_error(ws, "unavailable", "The message was not published: try again.",
                 cmd->ref);
}

static void on_publish(websocket_s *ws, const command_s *cmd) {
  content_s c = {.owned = NULL};
  if (!channel_of(ws, cmd, &c.message.channel))
    return;
  const char *fault = content_of(cmd->json, cmd->data, &c);
  if (!fault)
    fault = event_of(cmd->json, &c.message);
  json_t *echo = json_object_get(cmd->json, "echo");
  if (!fault && echo && !json_is_boolean(echo))
    fault = "echo is true or false.";
  if (!fault && json_object_get(cmd->json, "key"))
    fault = "Idempotency keys are not served by this version.";
  if (json_is_false(echo))
    c.message.origin = websocket_uuid(ws);
  if (fault)
    answer_error(ws, "bad_request", fault, cmd->ref);
  else
    publish(ws, &c, cmd);
  free(c.owned);
}

static void on_ping_op(websocket_s *ws, const command_s *cmd) {
  answer(ws, json_pack("{s:s}", "op", "pong"), cmd->ref);
}

/* ---- what comes in ----------------------------------------------------- */

static const struct {
  const char *op;
  void (*handle)(websocket_s *ws, const command_s *cmd);
} commands[] = {{"subscribe", on_subscribe},
                {"unsubscribe", on_unsubscribe},
                {"publish", on_publish},
                {"ping", on_ping_op}};

static void run_command(websocket_s *ws, const command_s *cmd) {
  json_t *op = json_object_get(cmd->json, "op");
  if (!json_is_string(op)) {
    answer_error(ws, "bad_request", "A command is an object with a string op.",
                 cmd->ref);
    return;
  }
  view_s name = view_of(json_string_value(op), json_string_length(op));
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    if (view_eq(name, view_str(commands[i].op))) {
      commands[i].handle(ws, cmd);
      return;
    }
  answer_error(ws, "unknown_op", "There is no such op.", cmd->ref);
}

/* The document without the value of "data", which may hold numbers that a
 * double cannot: it is not read, but handed on as it stands. NULL: no memory,
 * or a name stands twice in an object, or a number elsewhere is out of range.
 */
static json_t *read_command(view_s text, view_s data) {
  const char *in = text.data;
  char *copy = NULL;
  size_t len = text.len;
  if (data.len > 4 && data.data[0] != '"') {
    size_t before = (size_t)(data.data - text.data);
    copy = malloc(text.len);
    if (!copy)
      return NULL;
    memcpy(copy, text.data, before);
    char *end = json_raw(copy + before, VIEW_LIT("null"));
    end = json_raw(end, view_sub(text, before + data.len, text.len));
    in = copy;
    len = (size_t)(end - copy);
  }
  json_t *json = json_loadb(
      in, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  free(copy);
  return json;
}

static void v1_on_message(websocket_s *ws, view_s text, bool is_text) {
  const char *fault = is_text ? json_fault(text) : "Commands are text frames.";
  if (fault) {
    answer_error(ws, "bad_request", fault, NULL);
    return;
  }
  command_s cmd = {.len = text.len,
                   .data = json_member(text, VIEW_LIT("data"))};
  cmd.json = read_command(text, cmd.data);
  cmd.ref = json_object_get(cmd.json, "ref");
  if (cmd.json)
    run_command(ws, &cmd);
  else
    answer_error(ws, "bad_request",
                 "A name stands twice in an object, or a number is too large.",
                 NULL);
  json_decref(cmd.json);
}

/* ---- the connection ---------------------------------------------------- */

static void v1_on_open(websocket_s *ws, void *arg) {
  const native_open_s *open = arg;
  reader_init(&v1_of(ws)->reader, websocket_uuid(ws), &v1_kind);
  for (size_t i = 0; i < open->count && !websocket_is_closing(ws); i++)
    subscribe(ws, open->channels[i].name, &open->since, NULL);
}

static void v1_on_ready(websocket_s *ws) {
  reader_ready(&v1_of(ws)->reader);
}

static size_t v1_on_sent(websocket_s *ws, size_t sent) {
  return reader_sent(&v1_of(ws)->reader, sent);
}

static void v1_on_ping(websocket_s *ws) {
  uint64_t cursor = reader_cursor(&v1_of(ws)->reader);
  if (v1_of(ws)->reader.count && cursor)
    answer(ws,
           json_pack("{s:s, s:I}", "op", "cursor", "id", (json_int_t)cursor),
           NULL);
}

/* Clients are told how long to wait, each something else within a second more,
 * so that they do not come back all at once. */
void native_v1_notice(websocket_s *ws) {
  if (!websocket_is(ws, &native_v1_handler))
    return;
  uint32_t fd = (uint32_t)sock_uuid2fd(websocket_uuid(ws));
  uint32_t wait = dialect_settings.drain_notice_ms + fd * 2654435761u % 1000;
  answer(ws,
         json_pack("{s:s, s:I}", "op", "drain", "after_ms", (json_int_t)wait),
         NULL);
}

static void v1_on_close(websocket_s *ws) {
  reader_fini(&v1_of(ws)->reader);
}

const websocket_handler_s native_v1_handler = {.size = sizeof(v1_s),
                                               .on_open = v1_on_open,
                                               .on_message = v1_on_message,
                                               .on_ready = v1_on_ready,
                                               .on_sent = v1_on_sent,
                                               .on_ping = v1_on_ping,
                                               .on_close = v1_on_close};
