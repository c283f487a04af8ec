/* native_v1.c - crier.v1: one JSON object a text frame, both ways.
 *
 * A command is answered, in order, with its `ref` if it has one; what cannot be
 * done is an `error`, and the connection stays. Messages come as frames of the
 * tails; answers, gaps and cursors go through the connection's own queue. */
#include "content.h"
#include "facil/json_check.h"
#include "json_text.h"
#include "message_json.h"
#include "native.h"
#include "replay.h"
#include <errno.h>
#include <stdlib.h>

#define CLOSE_SLOW 4000
#define REPLAY_BYTES 65536u

typedef struct {
  reader_s reader; /* first */
} v1_s;

static v1_s *v1_of(websocket_s *ws) {
  return websocket_user(ws);
}

/* ---- messages as frames ------------------------------------------------ */

static size_t frame_size(const message_s *m) {
  size_t n = message_json_size(m, true);
  return ws_frame_head_size(n) + n;
}

static void frame_write(const message_s *m, char *out) {
  char head[WS_FRAME_HEAD_MAX];
  size_t n = ws_frame_head(head, WS_FIN_TEXT, message_json_size(m, true));
  memcpy(out, head, n);
  message_json_write(out + n, m, true);
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

static void v1_on_gap(reader_s *r, view_s channel, uint64_t from, uint64_t to,
                      bool is_slow) {
  websocket_s *ws = websocket_of(r);
  if (is_slow && dialect_settings.slow_closes) {
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
  json_t *json; /* see content_load */
  json_t *ref;  /* borrowed, or NULL */
  size_t len;   /* of its text */
  content_s *content;
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

static bool since_of(json_t *cmd, since_s *since) {
  json_t *j = json_object_get(cmd, "since");
  *since = (since_s){.what = SINCE_NOW};
  if (!j)
    return true;
  if (json_is_integer(j)) {
    json_int_t n = json_integer_value(j);
    *since =
        (since_s){n < 0 ? SINCE_LAST : SINCE_ID, (uint64_t)(n < 0 ? -n : n)};
    return n > -((json_int_t)1 << 53);
  }
  return json_is_string(j) &&
         since_read(view_of(json_string_value(j), json_string_length(j)),
                    since);
}

/* {"op":"subscribed","channel":C,"messages":[…],"cursor":N,…,"ref":R} */
static void answer_subscribed(websocket_s *ws, view_s name, const replay_s *r,
                              json_t *ref) {
  char *ref_text = ref ? json_dumps(ref, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
  view_s ref_json = view_str(ref_text);
  char *text =
      malloc(replay_json_max(r) + json_string_size(name) + ref_json.len + 64);
  if (!text || (ref && !ref_text)) {
    sock_abort(websocket_uuid(ws), "out of memory");
  } else {
    char *end = json_raw(text, VIEW_LIT("{\"op\":\"subscribed\","));
    end = json_raw(end, memchr(name.data, '*', name.len)
                            ? VIEW_LIT("\"pattern\":")
                            : VIEW_LIT("\"channel\":"));
    end = json_string_write(end, name);
    *end++ = ',';
    end = replay_json_write(end, r);
    if (ref) {
      end = json_raw(end, VIEW_LIT(",\"ref\":"));
      end = json_raw(end, ref_json);
    }
    *end++ = '}';
    websocket_write(ws, view_of(text, (size_t)(end - text)), true);
  }
  free(text);
  free(ref_text);
}

/* The replay is inside the answer, up to REPLAY_BYTES; what is more follows by
 * itself, as messages, and then the subscription is live. */
static void subscribe(websocket_s *ws, view_s name, const since_s *since,
                      json_t *ref) {
  reader_s *reader = &v1_of(ws)->reader;
  uint64_t cursor;
  bool is_new = reader_subscribe(reader, name, &cursor) == 0;
  if (!is_new && errno != EEXIST) {
    if (errno == ENOSPC)
      answer_error(ws, "too_many", "channels.per_connection is reached.", ref);
    else
      answer_error(ws, "unavailable", "There is no memory now.", ref);
    return;
  }
  replay_s replay = {.cursor = cursor};
  engine_limit_s limit = {dialect_settings.replay_limit, REPLAY_BYTES};
  uint64_t from = since_cursor(since, &name, 1, cursor);
  if (is_new && since->what != SINCE_NOW &&
      replay_read(&name, 1, from, limit, &replay) < 0) {
    reader_unsubscribe(reader, name);
    answer_error(ws, "unavailable", "The history cannot be read now.", ref);
  } else {
    answer_subscribed(ws, name, &replay, ref);
    if (replay.has_more)
      reader_rewind(reader, name, replay.cursor);
    if (is_new)
      reader_has(reader, name, from);
  }
  replay_free(&replay);
}

/* The channel or the pattern of a command, checked. False: it was answered. */
static bool name_of(websocket_s *ws, const command_s *cmd, view_s *name) {
  json_t *pattern = json_object_get(cmd->json, "pattern");
  const char *fault = "A pattern is a string, and goes without a channel.";
  if (!pattern)
    return channel_of(ws, cmd, name);
  if (json_is_string(pattern) && !json_object_get(cmd->json, "channel")) {
    *name = view_of(json_string_value(pattern), json_string_length(pattern));
    fault = pattern_fault(*name);
  }
  if (fault)
    answer_error(ws, "bad_pattern", fault, cmd->ref);
  return !fault;
}

static void on_subscribe(websocket_s *ws, const command_s *cmd) {
  view_s name;
  since_s since;
  if (!since_of(cmd->json, &since))
    answer_error(ws, "bad_request", "since is an id, 'first', 'now' or -N.",
                 cmd->ref);
  else if (name_of(ws, cmd, &name))
    subscribe(ws, name, &since, cmd->ref);
}

static void on_unsubscribe(websocket_s *ws, const command_s *cmd) {
  view_s name;
  if (!name_of(ws, cmd, &name))
    return;
  if (reader_unsubscribe(&v1_of(ws)->reader, name) < 0)
    answer_error(ws, "not_subscribed", "There is no such subscription.",
                 cmd->ref);
  else
    answer(
        ws,
        json_pack("{s:s, s:s%}", "op", "unsubscribed",
                  json_object_get(cmd->json, "pattern") ? "pattern" : "channel",
                  name.data, name.len),
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
  return 64 + cmd->len - cmd->content->data.len -
         (data64 < cmd->len ? data64 : 0);
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
    answer_error(ws,
                 p->status == 422   ? "conflict"
                 : p->status == 507 ? "full"
                                    : "unavailable",
                 publish_fault(p->status), w->ref);
  waiting_free(w);
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
  content_s *c = cmd->content;
  if (!channel_of(ws, cmd, &c->message.channel))
    return;
  const char *fault = content_read(cmd->json, c);
  json_t *echo = json_object_get(cmd->json, "echo");
  if (!fault && echo && !json_is_boolean(echo))
    fault = "echo is true or false.";
  if (json_is_false(echo))
    c->message.origin = websocket_uuid(ws);
  if (fault)
    answer_error(ws, "bad_request", fault, cmd->ref);
  else
    publish(ws, c, cmd);
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

static void v1_on_message(websocket_s *ws, view_s text, bool is_text) {
  const char *fault = is_text ? json_fault(text) : "Commands are text frames.";
  if (fault) {
    answer_error(ws, "bad_request", fault, NULL);
    return;
  }
  content_s content = {.owned = NULL};
  command_s cmd = {.len = text.len, .content = &content};
  cmd.json = content_load(text, &content);
  cmd.ref = json_object_get(cmd.json, "ref");
  if (cmd.json)
    run_command(ws, &cmd);
  else
    answer_error(ws, "bad_request",
                 "A name stands twice in an object, or a number is too large.",
                 NULL);
  json_decref(cmd.json);
  content_free(&content);
}

/* ---- the connection ---------------------------------------------------- */

static void v1_on_open(websocket_s *ws, void *arg) {
  const subscribe_s *ask = arg;
  reader_init(&v1_of(ws)->reader, websocket_uuid(ws), &v1_kind);
  for (size_t i = 0; i < ask->count && !websocket_is_closing(ws); i++)
    subscribe(ws, ask->names[i], &ask->since, NULL);
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
