/* json_check.c - a scanner for RFC 8259. The invariant: `at` never passes the
 * end, and what lies before it is a prefix of some valid JSON text. */
#include "facil/json_check.h"
#include "facil/utf8.h"

typedef struct {
  const char *at, *end;
  uint64_t objects; /* of each level: is it an object (1) or an array (0)? */
  unsigned depth;
  bool is_too_deep;
} scan_s;

static void skip_space(scan_s *s) {
  while (s->at < s->end &&
         (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
    s->at++;
}

static bool take(scan_s *s, char c) {
  if (s->at == s->end || *s->at != c)
    return false;
  s->at++;
  return true;
}

static bool take_word(scan_s *s, view_s word) {
  if ((size_t)(s->end - s->at) < word.len ||
      memcmp(s->at, word.data, word.len) != 0)
    return false;
  s->at += word.len;
  return true;
}

static bool is_digit(const scan_s *s) {
  return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static bool take_digits(scan_s *s) {
  if (!is_digit(s))
    return false;
  while (is_digit(s))
    s->at++;
  return true;
}

/* Section 6. */
static bool take_number(scan_s *s) {
  (void)take(s, '-');
  if (!take(s, '0') && !take_digits(s))
    return false;
  if (take(s, '.') && !take_digits(s))
    return false;
  if (take(s, 'e') || take(s, 'E')) {
    if (!take(s, '+'))
      (void)take(s, '-');
    return take_digits(s);
  }
  return true;
}

static bool take_hex4(scan_s *s) {
  for (int i = 0; i < 4; i++, s->at++)
    if (s->at == s->end || !*s->at || !strchr("0123456789abcdefABCDEF", *s->at))
      return false;
  return true;
}

/* Section 7; the first quote has been taken. UTF-8 is looked at elsewhere. */
static bool take_string(scan_s *s) {
  while (s->at < s->end) {
    unsigned char c = (unsigned char)*s->at++;
    if (c == '"')
      return true;
    if (c < 0x20)
      return false;
    if (c != '\\')
      continue;
    if (s->at == s->end)
      return false;
    char e = *s->at++;
    if (e == 'u' ? !take_hex4(s) : !e || !strchr("\"\\/bfnrt", e))
      return false;
  }
  return false;
}

static bool open_level(scan_s *s, bool is_object) {
  if (s->depth == JSON_DEPTH_MAX) {
    s->is_too_deep = true;
    return false;
  }
  s->objects = s->objects << 1 | is_object;
  s->depth++;
  return true;
}

static void close_level(scan_s *s) {
  s->objects >>= 1;
  s->depth--;
}

static bool take_key(scan_s *s) {
  skip_space(s);
  if (!take(s, '"') || !take_string(s))
    return false;
  skip_space(s);
  return take(s, ':');
}

/* A value that has no others inside, or the opening of one that has. True in
 * *opened: its first member has to come. */
static bool take_start(scan_s *s, bool *opened) {
  skip_space(s);
  *opened = false;
  if (take(s, '"'))
    return take_string(s);
  if (take(s, '{')) {
    if (!open_level(s, true))
      return false;
    skip_space(s);
    *opened = !(s->at < s->end && *s->at == '}');
    return !*opened || take_key(s);
  }
  if (take(s, '[')) {
    if (!open_level(s, false))
      return false;
    skip_space(s);
    *opened = !(s->at < s->end && *s->at == ']');
    return true;
  }
  return take_word(s, VIEW_LIT("true")) || take_word(s, VIEW_LIT("false")) ||
         take_word(s, VIEW_LIT("null")) || take_number(s);
}

/* Close what ends here. True in *more: another value has to come. */
static bool take_end(scan_s *s, unsigned base, bool *more) {
  *more = false;
  while (s->depth > base) {
    skip_space(s);
    bool is_object = s->objects & 1;
    if (take(s, is_object ? '}' : ']')) {
      close_level(s);
      continue;
    }
    *more = true;
    return take(s, ',') && (!is_object || take_key(s));
  }
  return true;
}

/* One value with all that is inside it. */
static bool take_value(scan_s *s) {
  unsigned base = s->depth;
  for (;;) {
    bool opened, more;
    if (!take_start(s, &opened))
      return false;
    if (opened)
      continue;
    if (!take_end(s, base, &more))
      return false;
    if (!more)
      return true;
  }
}

const char *json_fault(view_s text) {
  scan_s s = {.at = text.data, .end = text.data + text.len};
  if (!text.len || !utf8_is_valid(text) || !take_value(&s))
    return s.is_too_deep ? "The JSON is nested more than 64 deep."
                         : "This is announced as JSON and is not.";
  skip_space(&s);
  return s.at == s.end ? NULL : "Something follows the JSON text.";
}

view_s json_member(view_s text, view_s name) {
  scan_s s = {.at = text.data, .end = text.data + text.len};
  view_s found = view_of(NULL, 0);
  skip_space(&s);
  if (!take(&s, '{'))
    return found;
  for (;;) {
    skip_space(&s);
    if (!take(&s, '"'))
      return found;
    const char *key = s.at;
    if (!take_string(&s))
      return found;
    view_s k = view_of(key, (size_t)(s.at - key) - 1);
    skip_space(&s);
    if (!take(&s, ':'))
      return found;
    skip_space(&s);
    const char *value = s.at;
    if (!take_value(&s))
      return found;
    if (view_eq(k, name))
      found = view_of(value, (size_t)(s.at - value));
    skip_space(&s);
    if (!take(&s, ','))
      return found;
  }
}

bool json_element(view_s *rest, view_s *element) {
  scan_s s = {.at = rest->data, .end = rest->data + rest->len};
  skip_space(&s);
  if (!take(&s, '[') && !take(&s, ','))
    return false;
  skip_space(&s);
  const char *start = s.at;
  if (!take_value(&s))
    return false;
  *element = view_of(start, (size_t)(s.at - start));
  *rest = view_of(s.at, (size_t)(s.end - s.at));
  return true;
}
