/* http_parse.c - the head of an HTTP/1.1 request.
 *
 * Three readers look at a head, one after the other, and all must agree:
 *   1. the scan: where the head ends, and that no byte in it could be taken for
 *      a line end, a folded line or nothing by anybody else. It finds every
 *      fault at the first byte that shows it, so it does not matter in which
 *      pieces a head arrives;
 *   2. llhttp: the syntax. It sees exactly the head, never a byte of the body;
 *   3. the fields: what llhttp leaves to its user. Host, the framing (one
 *      Content-Length or one `chunked`, RFC 9112 section 6), the connection.
 *
 * Invariant: a request that comes out has one reading. Whatever has two is
 * refused, also where RFC 9112 lets a server pick one. llhttp's lenient
 * switches stay off. */
#include "facil/http_parse.h"

#include <arpa/inet.h>
#include <assert.h>
#include <llhttp.h>

#if LLHTTP_VERSION_MAJOR < 9 && !LLHTTP_STRICT_MODE
#error "llhttp 8 has to be built and used with LLHTTP_STRICT_MODE=1"
#endif

#define EMPTY_LINES_MAX 4
#define METHOD_MAX 32 /* longer than any that anybody has registered */
#define VERSION_LEN (sizeof "HTTP/1.1" - 1)

static bool refuse(http_request_s *req, int status, const char *detail) {
  req->status = status;
  req->detail = detail;
  return false;
}

/* RFC 9110 section 5.6.2. */
static bool is_tchar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static size_t token_len(view_s v) {
  size_t n = 0;
  while (n < v.len && is_tchar(v.data[n]))
    n++;
  return n;
}

/* The part of `v` before the first `c`; all of it if there is none. */
static view_s before(view_s v, char c) {
  const char *p = v.len ? (const char *)memchr(v.data, c, v.len) : NULL;
  return p ? view_of(v.data, (size_t)(p - v.data)) : v;
}

/* ---- host: RFC 9110 section 7.2, RFC 3986 section 3.2.2 ---------------- */

static bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* reg-name or IPv4address. A comma, though a sub-delim, would read as a list.
 */
static bool is_host_name(view_s v) {
  for (size_t i = 0; i < v.len; i++) {
    char c = v.data[i];
    if (c == '%' && v.len - i > 2 && is_hex(v.data[i + 1]) &&
        is_hex(v.data[i + 2]))
      i += 2;
    else if (!c || strchr("%#^`|", c) || !(is_tchar(c) || strchr("();=", c)))
      return false;
  }
  return v.len > 0;
}

static bool is_ipv6(view_s v) {
  char text[INET6_ADDRSTRLEN];
  struct in6_addr addr;
  if (v.len >= sizeof text || memchr(v.data, 0, v.len))
    return false;
  memcpy(text, v.data, v.len);
  text[v.len] = 0;
  return inet_pton(AF_INET6, text, &addr) == 1;
}

/* ":" and at most five digits up to 65535, or nothing. */
static bool is_port(view_s v) {
  unsigned long n = 0;
  if (v.len == 0)
    return true;
  if (v.data[0] != ':' || v.len > 6)
    return false;
  for (size_t i = 1; i < v.len; i++) {
    if (!is_digit(v.data[i]))
      return false;
    n = n * 10 + (unsigned long)(v.data[i] - '0');
  }
  return n <= 65535;
}

static bool is_host(view_s v) {
  if (v.len && v.data[0] == '[') {
    view_s address = before(view_sub(v, 1, v.len), ']');
    size_t end = address.len + 2; /* after the ']' */
    return end <= v.len && is_ipv6(address) && is_port(view_sub(v, end, v.len));
  }
  view_s name = before(v, ':');
  return is_host_name(name) && is_port(view_sub(v, name.len, v.len));
}

/* ---- the request line: RFC 9112 section 3 ------------------------------ */

/* Divide `line`, which may still grow, at its spaces, and refuse it as soon as
 * a part is too long. */
static bool split_request_line(view_s line, const http_limits_s *limits,
                               http_request_s *req, view_s *version) {
  view_s method = before(view_sub(line, 0, METHOD_MAX + 1), ' ');
  if (method.len > METHOD_MAX)
    return refuse(req, 501, "The method is not one that is known here.");
  view_s rest = view_sub(line, method.len + 1, line.len);
  view_s target = before(rest, ' ');
  if (target.len > limits->url_bytes)
    return refuse(req, 414, "The request target is too long.");
  *version = view_sub(rest, target.len + 1, rest.len);
  if (version->len > VERSION_LEN)
    return refuse(req, 400, "The request line does not end in a version.");
  req->method = method;
  req->target = target;
  return true;
}

/* RFC 9112 section 2.3; a line without a version would be HTTP/0.9. */
static bool read_version(view_s v, http_request_s *req) {
  if (v.len != VERSION_LEN || !view_starts(v, VIEW_LIT("HTTP/")) ||
      !is_digit(v.data[5]) || v.data[6] != '.' || !is_digit(v.data[7]) ||
      v.data[5] == '0')
    return refuse(req, 400, "The request line has no valid HTTP version.");
  if (v.data[5] != '1' || v.data[7] > '1')
    return refuse(req, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
  req->minor = (uint8_t)(v.data[7] - '0');
  return true;
}

static void divide_path(view_s v, http_request_s *req) {
  req->path = before(v, '?');
  req->query = view_sub(v, req->path.len + 1, v.len);
}

/* absolute-form, RFC 9112 section 3.2.2: `http://host/path?query`. */
static bool read_absolute(http_request_s *req) {
  view_s t = req->target;
  size_t scheme = 0;
  if (view_eq_nocase(view_sub(t, 0, 7), VIEW_LIT("http://")))
    scheme = 7;
  else if (view_eq_nocase(view_sub(t, 0, 8), VIEW_LIT("https://")))
    scheme = 8;
  else
    return refuse(req, 400, "The request target has none of the known forms.");
  view_s rest = view_sub(t, scheme, t.len);
  req->host = before(before(rest, '?'), '/');
  if (!is_host(req->host))
    return refuse(req, 400, "The host in the request target is not valid.");
  divide_path(view_sub(rest, req->host.len, rest.len), req);
  if (req->path.len == 0) /* the slash before the host serves as one */
    req->path = view_sub(t, scheme - 1, 1);
  return true;
}

/* RFC 9112 section 3.2. */
static bool read_target(http_request_s *req) {
  view_s t = req->target;
  if (memchr(t.data, '#', t.len))
    return refuse(req, 400, "The request target has a fragment.");
  if (view_eq(req->method, VIEW_LIT("CONNECT"))) {
    req->host = t;
    return is_host(t) || refuse(req, 400, "CONNECT needs a host as target.");
  }
  if (t.data[0] == '/') {
    divide_path(t, req);
    return true;
  }
  if (view_eq(t, VIEW_LIT("*"))) {
    req->path = t;
    return view_eq(req->method, VIEW_LIT("OPTIONS")) ||
           refuse(req, 400, "The request target * is for OPTIONS only.");
  }
  return read_absolute(req);
}

/* `line` is whole and without its CRLF. */
static bool read_request_line(view_s line, const http_limits_s *limits,
                              http_request_s *req) {
  view_s version;
  if (!split_request_line(line, limits, req, &version))
    return false;
  if (req->target.len == 0 || version.len == 0 ||
      token_len(req->method) != req->method.len)
    return refuse(req, 400, "The request line is not method, target, version.");
  return read_version(version, req) && read_target(req);
}

/* ---- the scan ---------------------------------------------------------- */

typedef struct {
  view_s in;     /* the input, cut where the head would be too long */
  size_t start;  /* of the request line */
  size_t at;     /* every byte before it was found to be good */
  size_t lines;  /* before `at`, if `counted` */
  bool counted;  /* a head that goes on is counted only when it has to be */
  bool in_first; /* `at` is in the request line */
  const http_limits_s *limits;
  http_request_s *req;
} scan_s;

enum { SCAN_REFUSED = -1, SCAN_MORE, SCAN_LINE, SCAN_END };

#define EACH(byte) (UINT64_MAX / 255 * (byte))

/* Whether any of eight bytes is below 0x20 or is DEL. */
static bool has_control(uint64_t w) {
  uint64_t del = w ^ EACH(0x7f);
  uint64_t low = (w - EACH(0x20)) & ~w;
  return ((low | ((del - EACH(0x01)) & ~del)) & EACH(0x80)) != 0;
}

/* How many bytes from `at` on may stand inside a line: all but controls, with
 * HT (RFC 9110 section 5.5). */
static size_t plain_run(view_s in, size_t at) {
  const char *p = in.data + at, *end = in.data + in.len;
  for (;;) {
    uint64_t w;
    while ((size_t)(end - p) >= sizeof w &&
           (memcpy(&w, p, sizeof w), !has_control(w)))
      p += sizeof w;
    while (p < end && ((unsigned char)*p >= 0x20 && *p != 0x7f))
      p++;
    if (p == end || *p != '\t')
      return (size_t)(p - in.data) - at;
    p++;
  }
}

static void count_lines(scan_s *s) {
  const char *p = s->in.data + s->start, *end = s->in.data + s->at;
  if (s->counted)
    return;
  s->lines = 0;
  while (p < end && (p = (const char *)memchr(p, '\n', (size_t)(end - p)))) {
    s->lines++;
    p++;
  }
  s->counted = true;
}

/* Whether the byte at `at`, the first of a line, may be that. */
static bool line_may_begin(scan_s *s) {
  char c = s->in.data[s->at];
  if (s->in_first)
    return is_tchar(c) ||
           refuse(s->req, 400, "The request does not begin with a method.");
  if (c == ' ' || c == '\t') /* obs-fold, RFC 9112 section 5.2 */
    return refuse(s->req, 400, "A header line begins with white space.");
  if (c == ':')
    return refuse(s->req, 400, "A header field has no name.");
  if (c == '\r')
    return true;
  count_lines(s);
  return s->lines <= s->limits->header_count ||
         refuse(s->req, 431, "There are too many header fields.");
}

/* The request line so far. */
static bool first_line_may_go_on(scan_s *s) {
  view_s version;
  return split_request_line(view_sub(s->in, s->start, s->at - s->start),
                            s->limits, s->req, &version);
}

/* From `at` through the next line end. */
static int scan_line(scan_s *s) {
  const char *p = s->in.data;
  bool begins = s->at == s->start || p[s->at - 1] == '\n';
  size_t from = s->at;
  if (begins && s->at < s->in.len && !line_may_begin(s))
    return SCAN_REFUSED;
  s->at += plain_run(s->in, s->at);
  if (s->in_first && !first_line_may_go_on(s))
    return SCAN_REFUSED;
  if (s->at == s->in.len)
    return SCAN_MORE;
  if (p[s->at] == '\r' && s->at + 1 == s->in.len)
    return SCAN_MORE;
  if (p[s->at] != '\r' || p[s->at + 1] != '\n') {
    refuse(s->req, 400, "A byte in the head is not allowed there.");
    return SCAN_REFUSED;
  }
  bool is_empty = begins && s->at == from;
  s->at += 2;
  s->lines++;
  return is_empty ? SCAN_END : SCAN_LINE;
}

static bool read_first_line(scan_s *s) {
  view_s head = view_sub(s->in, s->start, s->in.len);
  s->in_first = false;
  return read_request_line(before(head, '\r'), s->limits, s->req);
}

/* Skip what an old client may send after a body (RFC 9112 section 2.2). */
static int scan_empty_lines(scan_s *s) {
  for (int n = 0;; n++) {
    view_s rest = view_sub(s->in, s->start, 2);
    if (rest.len == 0 || (rest.len == 1 && rest.data[0] == '\r'))
      return SCAN_MORE;
    if (!view_eq(rest, VIEW_LIT("\r\n")))
      return SCAN_LINE;
    if (n == EMPTY_LINES_MAX) {
      refuse(s->req, 400, "There are too many empty lines.");
      return SCAN_REFUSED;
    }
    s->start += 2;
  }
}

/* Go on where the last call stopped, if there was one. */
static void scan_resume(scan_s *s, size_t scanned) {
  s->at = scanned > s->start ? scanned : s->start;
  s->counted = s->at == s->start;
  s->in_first =
      s->counted || !memchr(s->in.data + s->start, '\n', s->at - s->start);
}

/* SCAN_END: [start, at) is a head whose request line has been read. */
static int scan_head(scan_s *s, size_t *scanned) {
  int step = scan_empty_lines(s);
  if (step != SCAN_LINE)
    return step;
  s->in = view_sub(s->in, 0,
                   s->in.len - s->start > s->limits->header_bytes
                       ? s->start + s->limits->header_bytes
                       : s->in.len);
  scan_resume(s, *scanned);
  bool resumed = !s->in_first;
  do {
    step = scan_line(s);
    if (step == SCAN_LINE && s->in_first && !read_first_line(s))
      return SCAN_REFUSED;
  } while (step == SCAN_LINE);
  *scanned = s->at;
  if (step == SCAN_MORE && s->in.len - s->start >= s->limits->header_bytes) {
    refuse(s->req, 431, "The request line and headers are too long.");
    return SCAN_REFUSED;
  }
  if (step == SCAN_END && resumed && !read_first_line(s))
    return SCAN_REFUSED;
  return step;
}

/* ---- llhttp ------------------------------------------------------------ */

typedef struct {
  http_request_s *req;
  size_t room;
  bool is_whole;
} fields_s;

static int on_name(llhttp_t *p, const char *at, size_t len) {
  fields_s *f = (fields_s *)p->data;
  if (f->room == 0)
    return -1;
  f->room--;
  f->req->headers[f->req->header_count++] =
      (http_header_s){.name = view_of(at, len), .value = view_of(at + len, 0)};
  return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t len) {
  http_request_s *req = ((fields_s *)p->data)->req;
  if (req->header_count == 0)
    return -1;
  req->headers[req->header_count - 1].value = view_trim(view_of(at, len));
  return 0;
}

/* Stop here: what follows is judged by the fields, not by llhttp. */
static int on_head(llhttp_t *p) {
  ((fields_s *)p->data)->is_whole = true;
  return HPE_PAUSED;
}

static const llhttp_settings_t head_settings = {
    .on_header_field = on_name,
    .on_header_value = on_value,
    .on_headers_complete = on_head,
};

/* RFC 9110 section 8.6, narrower: digits, no sign, no list, no leading zero. */
static bool read_length(view_s v, size_t limit, http_request_s *req) {
  uint64_t n = 0;
  for (size_t i = 0; i < v.len; i++)
    if (!is_digit(v.data[i]))
      v.len = 0;
  if (v.len == 0 || (v.len > 1 && v.data[0] == '0'))
    return refuse(req, 400, "The Content-Length is not a plain number.");
  for (size_t i = 0; i < v.len; i++) {
    uint64_t digit = (uint64_t)(v.data[i] - '0');
    if (n > (limit - (digit < limit ? digit : limit)) / 10)
      return refuse(req, 413, "The body is too large.");
    n = n * 10 + digit;
  }
  if (n > limit)
    return refuse(req, 413, "The body is too large.");
  req->has_length = true;
  req->content_length = n;
  return true;
}

/* Say why a list of transfer codings (RFC 9112 section 6.1) that is not one
 * `chunked` is refused: 501 if it is a good list of others, else 400. */
static bool refuse_codings(view_s list, http_request_s *req) {
  bool chunked_seen = false;
  for (;;) {
    view_s part = before(list, ','), member = view_trim(part);
    view_s name = view_sub(member, 0, token_len(member));
    view_s rest = view_trim(view_sub(member, name.len, member.len));
    bool is_chunked = view_eq_nocase(name, VIEW_LIT("chunked"));
    if (name.len == 0 || chunked_seen || (rest.len && rest.data[0] != ';') ||
        (is_chunked && rest.len))
      return refuse(req, 400, "The Transfer-Encoding is not well formed.");
    chunked_seen = is_chunked;
    if (part.len == list.len)
      return refuse(req, 501, "The only transfer coding here is chunked.");
    list = view_sub(list, part.len + 1, list.len);
  }
}

/* The field whose line the byte at `from` is in. */
static http_header_s line_at(view_s head, size_t from) {
  while (from && head.data[from - 1] != '\n')
    from--;
  view_s line = before(view_sub(head, from, head.len), '\r');
  view_s name = before(line, ':');
  view_s value = view_sub(line, name.len + 1, line.len);
  return (http_header_s){.name = name, .value = view_trim(value)};
}

/* llhttp stopped at the byte `at` of `head`: find the status for that. */
static bool refuse_syntax(view_s head, size_t at, llhttp_errno_t err,
                          size_t body_bytes, http_request_s *req) {
  http_header_s field = line_at(head, at);
  switch (err) {
  case HPE_INVALID_URL:
    return refuse(req, 400, "A byte in the request target is not allowed.");
  case HPE_INVALID_METHOD:
  case HPE_INVALID_VERSION: /* the version is good: not for this method then */
  case HPE_INVALID_CONSTANT:
    return refuse(req, 501, "The method is not one that is known here.");
  case HPE_UNEXPECTED_CONTENT_LENGTH:
    return refuse(req, 400, "There is more than one length for the body.");
  case HPE_INVALID_TRANSFER_ENCODING:
    if (req->minor == 1 &&
        http_header_times(req, VIEW_LIT("Transfer-Encoding")) == 1)
      return refuse_codings(field.value, req);
    break;
  default:
    break;
  }
  if (view_eq_nocase(field.name, VIEW_LIT("Content-Length")) &&
      !read_length(field.value, body_bytes, req))
    return false;
  return refuse(req, 400, "A header field is not well formed.");
}

static bool read_fields(view_s head, const http_limits_s *limits,
                        http_request_s *req) {
  fields_s fields = {.req = req, .room = limits->header_count};
  llhttp_t parser;
  llhttp_init(&parser, HTTP_REQUEST, &head_settings);
  parser.data = &fields;
  llhttp_errno_t err = llhttp_execute(&parser, head.data, head.len);
  if (err == HPE_PAUSED && fields.is_whole)
    return true;
  const char *pos = llhttp_get_error_pos(&parser); /* NULL: it wants more */
  size_t at = pos && err ? (size_t)(pos - head.data) : head.len;
  return refuse_syntax(head, at, err, limits->body_bytes, req);
}

/* ---- the fields -------------------------------------------------------- */

typedef struct {
  size_t hosts, lengths, codings;
  view_s host, length, coding; /* the first of each */
  bool has_upgrade, has_expect;
  bool says_close, says_keep_alive, says_upgrade; /* in Connection */
  bool is_disguised; /* Content_Length and the like */
} known_s;

static void take_first(size_t *times, view_s *first, view_s value) {
  if ((*times)++ == 0)
    *first = value;
}

/* RFC 9110 section 7.6.1. */
static void take_connection(known_s *k, view_s list) {
  view_s option;
  while (http_list_next(&list, &option)) {
    k->says_close |= view_eq_nocase(option, VIEW_LIT("close"));
    k->says_keep_alive |= view_eq_nocase(option, VIEW_LIT("keep-alive"));
    k->says_upgrade |= view_eq_nocase(option, VIEW_LIT("upgrade"));
  }
}

/* A framing field written with '_', which some readers take for '-'. */
static bool is_disguised(view_s name, view_s real) {
  bool has_underscore = false;
  for (size_t i = 0; i < real.len; i++) {
    char c = name.data[i] | 0x20, want = real.data[i];
    if (name.data[i] == '_' && want == '-')
      has_underscore = true;
    else if (c != want && name.data[i] != want)
      return false;
  }
  return has_underscore;
}

static void take_field(known_s *k, const http_header_s *h) {
  switch (h->name.len) { /* most fields are of no length that matters */
  case sizeof "Host" - 1:
    if (view_eq_nocase(h->name, VIEW_LIT("Host")))
      take_first(&k->hosts, &k->host, h->value);
    break;
  case sizeof "Expect" - 1:
    if (view_eq_nocase(h->name, VIEW_LIT("Expect")))
      k->has_expect |= view_eq_nocase(h->value, VIEW_LIT("100-continue"));
    break;
  case sizeof "Upgrade" - 1:
    k->has_upgrade |= view_eq_nocase(h->name, VIEW_LIT("Upgrade"));
    break;
  case sizeof "Connection" - 1:
    if (view_eq_nocase(h->name, VIEW_LIT("Connection")))
      take_connection(k, h->value);
    break;
  case sizeof "Content-Length" - 1:
    if (view_eq_nocase(h->name, VIEW_LIT("Content-Length")))
      take_first(&k->lengths, &k->length, h->value);
    else
      k->is_disguised |= is_disguised(h->name, VIEW_LIT("content-length"));
    break;
  case sizeof "Transfer-Encoding" - 1:
    if (view_eq_nocase(h->name, VIEW_LIT("Transfer-Encoding")))
      take_first(&k->codings, &k->coding, h->value);
    else
      k->is_disguised |= is_disguised(h->name, VIEW_LIT("transfer-encoding"));
    break;
  default:
    break;
  }
}

/* RFC 9112 section 3.2. */
static bool check_host(const known_s *k, http_request_s *req) {
  if (k->hosts == 0)
    return req->minor == 0 || refuse(req, 400, "There is no Host field.");
  if (k->hosts > 1)
    return refuse(req, 400, "There is more than one Host field.");
  if (!is_host(k->host))
    return refuse(req, 400, "The Host field is not a host and a port.");
  if (req->host.len == 0) /* a host in the target wins */
    req->host = k->host;
  return true;
}

/* RFC 9112 section 6. */
static bool check_framing(const known_s *k, size_t body_bytes,
                          http_request_s *req) {
  if (k->is_disguised)
    return refuse(req, 400, "A field looks like one that frames the body.");
  if (k->codings && k->lengths)
    return refuse(req, 400,
                  "Content-Length and Transfer-Encoding exclude each other.");
  if (k->codings && req->minor == 0)
    return refuse(req, 400, "HTTP/1.0 has no Transfer-Encoding.");
  if (k->codings > 1)
    return refuse(req, 400, "There is more than one Transfer-Encoding.");
  if (k->codings && !view_eq_nocase(k->coding, VIEW_LIT("chunked")))
    return refuse_codings(k->coding, req);
  req->chunked = k->codings == 1;
  if (k->lengths > 1)
    return refuse(req, 400, "There is more than one Content-Length.");
  return k->lengths == 0 || read_length(k->length, body_bytes, req);
}

/* RFC 9112 section 9.3, RFC 9110 sections 7.8 and 10.1.1. */
static bool check_connection(const known_s *k, http_request_s *req) {
  bool has_body = req->chunked || req->content_length;
  req->keep_alive = !k->says_close && (req->minor || k->says_keep_alive);
  req->expects_100 = k->has_expect && has_body && req->minor;
  req->wants_upgrade = k->has_upgrade && k->says_upgrade;
  return !(req->wants_upgrade && has_body) ||
         refuse(req, 400, "A request to upgrade must not have a body.");
}

static bool check_fields(size_t body_bytes, http_request_s *req) {
  known_s known = {.hosts = 0};
  for (size_t i = 0; i < req->header_count; i++)
    take_field(&known, &req->headers[i]);
  return check_host(&known, req) && check_framing(&known, body_bytes, req) &&
         check_connection(&known, req);
}

ssize_t http_parse_head(view_s input, const http_limits_s *limits,
                        http_header_s *headers, size_t *scanned,
                        http_request_s *req) {
  assert(limits->header_count <= HTTP_HEADERS_MAX);
  *req = (http_request_s){.headers = headers};
  scan_s s = {.in = input, .limits = limits, .req = req};
  int step = scan_head(&s, scanned);
  if (step != SCAN_END)
    return step;
  if (!read_fields(view_sub(s.in, s.start, s.at - s.start), limits, req))
    return -1;
  count_lines(&s);
  if (req->header_count + 2 != s.lines) { /* request line and empty line */
    refuse(req, 400, "The head is not valid HTTP/1.1.");
    return -1;
  }
  return check_fields(limits->body_bytes, req) ? (ssize_t)s.at : -1;
}
