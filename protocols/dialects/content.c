/* content.c - messages out of JSON. Invariant: JSON travels as it stands in the
 * text that brought it, with its own digits and escapes. */
#include "content.h"
#include "facil/json_check.h"
#include <openssl/evp.h>
#include <stdlib.h>

/* ---- loading ------------------------------------------------------------- */

/* The document without the value of "data", which may hold numbers that a
 * double cannot: it is not read, but handed on as it stands. NULL: no memory,
 * or a name stands twice in an object, or a number elsewhere is out of range.
 */
static json_t *load_without(view_s text, view_s data) {
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

json_t *content_load(view_s text, content_s *c) {
  c->data = json_member(text, VIEW_LIT("data"));
  return load_without(text, c->data);
}

void content_free(content_s *c) {
  free(c->owned);
  c->owned = NULL;
}

/* ---- data ------------------------------------------------------------------
 */

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

static const char *data_and_type(json_t *cmd, content_s *c) {
  json_t *data = json_object_get(cmd, "data");
  json_t *data64 = json_object_get(cmd, "data64");
  json_t *type = json_object_get(cmd, "type");
  if ((type && !json_is_string(type)) || !data == !data64)
    return "A publish has data or data64, and type is a string.";
  view_s media =
      type ? view_of(json_string_value(type), json_string_length(type))
           : VIEW_LIT("");
  const char *fault = data64 ? data64_of(data64, c)
                             : data_of(data, c->data, is_json_type(media), c);
  if (fault)
    return fault;
  if (!media.len && data64)
    media = VIEW_LIT("application/octet-stream");
  if (!media.len)
    media = json_is_string(data) ? VIEW_LIT("text/plain")
                                 : VIEW_LIT("application/json");
  return message_classify(&c->message, media);
}

/* ---- what goes with it
 * ------------------------------------------------------- */

static const char *event_of(json_t *cmd, message_s *m) {
  json_t *event = json_object_get(cmd, "event");
  if (!event)
    return NULL;
  if (!json_is_string(event))
    return "An event's name is a string.";
  m->event = view_of(json_string_value(event), json_string_length(event));
  return event_fault(m->event);
}

static const char *key_of(json_t *cmd, message_s *m) {
  json_t *key = json_object_get(cmd, "key");
  if (!key)
    return NULL;
  m->key = view_of(json_string_value(key), json_string_length(key));
  return key_fault(m->key);
}

static const char *ttl_of(json_t *object, message_s *m) {
  json_t *ttl = json_object_get(object, "ttl");
  if (!ttl)
    return NULL;
  json_int_t n = json_integer_value(ttl);
  m->ttl_s = n > 0 && n < 1000000000 ? (uint32_t)n : 0;
  return m->ttl_s ? NULL : "ttl is a number of seconds, at least 1.";
}

const char *content_read(json_t *object, content_s *c) {
  const char *fault = data_and_type(object, c);
  if (!fault)
    fault = event_of(object, &c->message);
  if (!fault)
    fault = key_of(object, &c->message);
  return fault ? fault : ttl_of(object, &c->message);
}
