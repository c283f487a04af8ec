/* message.c - what a message is: text, JSON or other bytes.
 *
 * Decided once, when it is published, so that no reader has to look again. */
#include "facil/json_check.h"
#include "facil/pubsub.h"
#include "facil/utf8.h"

static bool is_token(view_s v) {
  static const char others[] = "!#$%&'*+-.^_`|~";
  for (size_t i = 0; i < v.len; i++) {
    char c = v.data[i];
    bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                 (c >= 'a' && c <= 'z');
    if (!alnum && (!c || !strchr(others, c)))
      return false;
  }
  return v.len > 0;
}

/* The media type without its parameters, if it is one (RFC 9110 section 8.3.1).
 */
static bool essence(view_s media_type, view_s *type, view_s *subtype) {
  const char *semicolon =
      media_type.len ? memchr(media_type.data, ';', media_type.len) : NULL;
  if (semicolon)
    media_type.len = (size_t)(semicolon - media_type.data);
  media_type = view_trim(media_type);
  const char *slash =
      media_type.len ? memchr(media_type.data, '/', media_type.len) : NULL;
  if (!slash)
    return false;
  size_t n = (size_t)(slash - media_type.data);
  *type = view_sub(media_type, 0, n);
  *subtype = view_sub(media_type, n + 1, media_type.len);
  return is_token(*type) && is_token(*subtype);
}

static bool ends_nocase(view_s v, view_s end) {
  return v.len >= end.len &&
         view_eq_nocase(view_sub(v, v.len - end.len, end.len), end);
}

/* It goes out in frames as it came in: no byte may break them. */
static bool is_printable(view_s v) {
  for (size_t i = 0; i < v.len; i++)
    if ((v.data[i] < ' ' && v.data[i] != '\t') || v.data[i] > '~')
      return false;
  return true;
}

static const char *classify_plain(message_s *m) {
  bool text = utf8_is_valid(m->data);
  m->kind = text ? MESSAGE_TEXT : MESSAGE_BINARY;
  m->type =
      text ? VIEW_LIT("text/plain") : VIEW_LIT("application/octet-stream");
  return NULL;
}

const char *message_classify(message_s *m, view_s media_type) {
  view_s type, subtype;
  media_type = view_trim(media_type);
  if (!media_type.len)
    return classify_plain(m);
  if (media_type.len > 255 || !is_printable(media_type) ||
      !essence(media_type, &type, &subtype))
    return "Content-Type is not a media type.";
  m->type = media_type;
  if (view_eq_nocase(type, VIEW_LIT("application")) &&
      view_eq_nocase(subtype, VIEW_LIT("x-www-form-urlencoded")))
    return classify_plain(m);
  if (ends_nocase(subtype, VIEW_LIT("+json")) ||
      (view_eq_nocase(type, VIEW_LIT("application")) &&
       view_eq_nocase(subtype, VIEW_LIT("json")))) {
    m->kind = MESSAGE_JSON;
    return json_fault(m->data);
  }
  if (view_eq_nocase(type, VIEW_LIT("text"))) {
    m->kind = MESSAGE_TEXT;
    return utf8_is_valid(m->data) ? NULL
                                  : "The body is announced as text and is not "
                                    "UTF-8.";
  }
  m->kind = MESSAGE_BINARY;
  return NULL;
}
