/* http_text.c - small readers of header fields, queries and status codes.
 *
 * Each of them reads its bytes once, from the front, and never fails: what does
 * not parse is passed over or handed on as it is, and the caller judges. The
 * one exception is percent-decoding, where a bad '%' has no meaning at all. */
#include "facil/http_parse.h"

/* ---- fields ------------------------------------------------------------ */

view_s http_header(const http_request_s *req, view_s name) {
  for (size_t i = 0; i < req->header_count; i++)
    if (view_eq_nocase(req->headers[i].name, name))
      return req->headers[i].value;
  return view_of(NULL, 0);
}

size_t http_header_times(const http_request_s *req, view_s name) {
  size_t times = 0;
  for (size_t i = 0; i < req->header_count; i++)
    times += view_eq_nocase(req->headers[i].name, name);
  return times;
}

bool http_header_has_token(const http_request_s *req, view_s name,
                           view_s token) {
  for (size_t i = 0; i < req->header_count; i++) {
    view_s list = req->headers[i].value, member;
    if (!view_eq_nocase(req->headers[i].name, name))
      continue;
    while (http_list_next(&list, &member))
      if (view_eq_nocase(member, token))
        return true;
  }
  return false;
}

/* ---- lists ------------------------------------------------------------- */

/* Take off the front of `*rest` what comes before the first `by` that is not in
 * a quoted string (RFC 9110 section 5.6.4), and the `by`. */
static view_s take_part(view_s *rest, char by) {
  bool is_quoted = false;
  size_t n = 0;
  for (; n < rest->len; n++) {
    char c = rest->data[n];
    if (c == '"')
      is_quoted = !is_quoted;
    else if (c == '\\' && is_quoted && rest->len - n > 1)
      n++;
    else if (c == by && !is_quoted)
      break;
  }
  view_s part = view_sub(*rest, 0, n);
  *rest = view_sub(*rest, n < rest->len ? n + 1 : n, rest->len);
  return part;
}

bool http_list_next(view_s *list, view_s *member) {
  while (list->len) {
    *member = view_trim(take_part(list, ','));
    if (member->len)
      return true;
  }
  return false;
}

/* ---- queries ----------------------------------------------------------- */

static int hex_value(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return -1;
}

ssize_t http_percent_decode(view_s in, char *out) {
  char *o = out;
  for (size_t i = 0; i < in.len; i++) {
    char c = in.data[i];
    if (c == '%') {
      int high = in.len - i > 2 ? hex_value(in.data[i + 1]) : -1;
      int low = in.len - i > 2 ? hex_value(in.data[i + 2]) : -1;
      if (high < 0 || low < 0)
        return -1;
      c = (char)(high << 4 | low);
      i += 2;
    }
    *o++ = c;
  }
  return o - out;
}

/* What comes before the first `by`, taken off the front with the `by`. */
static view_s take_until(view_s *rest, char by) {
  const char *p =
      rest->len ? (const char *)memchr(rest->data, by, rest->len) : NULL;
  size_t n = p ? (size_t)(p - rest->data) : rest->len;
  view_s part = view_sub(*rest, 0, n);
  *rest = view_sub(*rest, p ? n + 1 : n, rest->len);
  return part;
}

bool http_query_next(view_s *query, view_s *name, view_s *value) {
  while (query->len) {
    *value = take_until(query, '&');
    if (value->len) {
      *name = take_until(value, '=');
      return true;
    }
  }
  return false;
}

/* ---- Accept: RFC 9110 section 12.5.1 ----------------------------------- */

/* A weight, `0` to `1` with at most three decimals (section 12.4.2). */
static bool is_weight(view_s v) {
  if (v.len == 0 || v.len > 5 || (v.data[0] != '0' && v.data[0] != '1') ||
      (v.len > 1 && v.data[1] != '.'))
    return false;
  for (size_t i = 2; i < v.len; i++)
    if (v.data[i] < '0' || v.data[i] > (v.data[0] == '0' ? '9' : '0'))
      return false;
  return true;
}

static bool is_zero(view_s weight) {
  for (size_t i = 0; i < weight.len; i++)
    if (weight.data[i] != '0' && weight.data[i] != '.')
      return false;
  return true;
}

/* Whether the parameters of a media range leave it acceptable. */
static bool is_weighted_in(view_s params) {
  while (params.len) {
    view_s value = take_part(&params, ';');
    view_s name = view_trim(take_until(&value, '='));
    value = view_trim(value);
    if (view_eq_nocase(name, VIEW_LIT("q")))
      return is_weight(value) && !is_zero(value);
  }
  return true;
}

bool http_accepts_exactly(view_s accept, view_s type) {
  view_s member;
  while (http_list_next(&accept, &member)) {
    view_s range = view_trim(take_part(&member, ';'));
    if (view_eq_nocase(range, type) && is_weighted_in(member))
      return true;
  }
  return false;
}

/* ---- status codes: RFC 9110 section 15, RFC 6585 ----------------------- */

const char *http_status_text(int status) {
  static const struct {
    int status;
    const char *text;
  } texts[] = {
      {100, "Continue"},
      {101, "Switching Protocols"},
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {206, "Partial Content"},
      {301, "Moved Permanently"},
      {302, "Found"},
      {303, "See Other"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {308, "Permanent Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {402, "Payment Required"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {410, "Gone"},
      {411, "Length Required"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {416, "Range Not Satisfiable"},
      {417, "Expectation Failed"},
      {421, "Misdirected Request"},
      {422, "Unprocessable Content"},
      {425, "Too Early"},
      {426, "Upgrade Required"},
      {428, "Precondition Required"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {507, "Insufficient Storage"},
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].status == status)
      return texts[i].text;
  return "Unknown";
}
