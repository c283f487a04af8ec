/* config.c - the table of settings, and what reads and writes by it.
 *
 * Kept true: a value is in the config only if its row allows it, so whoever
 * reads the config need not check ranges; and what one row prints, it reads
 * again. A new setting is one member of crier_config_s and one row here; the
 * command line, the environment, the help and the check follow.
 *
 * Numbers are compared with their limit before they grow: no text, however
 * long, overflows. */
#include "config.h"
#include "access.h"
#include "rules.h"
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define SECOND UINT64_C(1000)
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)

/* ---- The table --------------------------------------------------------- */

static const char *const slow_choices[] = {"skip", "close", NULL};
static const char *const full_choices[] = {"evict", "refuse", NULL};
static const char *const uring_choices[] = {"auto", "off", NULL};
static const char *const rule_shape[] = {
    "'PATTERN count=N bytes=SIZE age=TIME slow=skip|close'", NULL};
static const char *const store_shape[] = {"memory", "PATH", NULL};
static const char *const log_choices[] = {"error", "warn", "info", "debug",
                                          NULL};

#define AT(member) offsetof(crier_config_s, member)

static const config_setting_s settings[] = {
    {"listen", CONFIG_LISTEN, AT(listen), "127.0.0.1:8080", 0, 0, NULL,
     "where to listen; may be given several times"},
    {"workers", CONFIG_UINT, AT(workers), "0", 0, 64, NULL,
     "worker processes; 0 is one per usable core"},
    {"open", CONFIG_BOOL, AT(open), "false", 0, 0, NULL,
     "serve every address, name and proxy, not only loopback"},
    {"message.max", CONFIG_SIZE, AT(message_max), "1MiB", 1, 256 * MIB, NULL,
     "largest message and largest body of a request"},
    {"ring.size", CONFIG_SIZE, AT(ring_size), "16MiB", 64 * KIB, 8 * GIB, NULL,
     "memory that the workers share; 16 x message.max or more"},
    {"tail.size", CONFIG_SIZE, AT(tail_size), "256KiB", 4 * KIB, GIB, NULL,
     "ready frames kept per channel and kind of reader; at least 16 messages"},
    {"tail.total", CONFIG_SIZE, AT(tail_total), "64MiB", 64 * KIB, 64 * GIB,
     NULL, "ready frames kept per worker"},
    {"queue.limit", CONFIG_SIZE, AT(queue_limit), "64KiB", 4 * KIB, 64 * MIB,
     NULL, "answers and control frames that wait on a connection"},
    {"slow", CONFIG_ENUM, AT(slow), "skip", 0, 0, slow_choices,
     "a reader that falls behind skips messages or is closed"},
    {"slow.timeout", CONFIG_DURATION, AT(slow_timeout_ms), "60s", SECOND,
     24 * HOUR, NULL, "a reader that takes no byte for so long is closed"},
    {"http.header_bytes", CONFIG_SIZE, AT(http_header_bytes), "16KiB", KIB, MIB,
     NULL, "request line and header of a request (else 431)"},
    {"http.header_count", CONFIG_UINT, AT(http_header_count), "128", 8, 256,
     NULL, "header fields of a request (else 431)"},
    {"http.url", CONFIG_SIZE, AT(http_url), "8KiB", 64, 64 * KIB, NULL,
     "target of a request (else 414)"},
    {"http.timeout", CONFIG_DURATION, AT(http_timeout_ms), "10s", 100, HOUR,
     NULL, "time to send the head of a request (else 408)"},
    {"http.idle", CONFIG_DURATION, AT(http_idle_ms), "60s", 100, 24 * HOUR,
     NULL, "time that a connection may rest between requests"},
    {"ws.ping", CONFIG_DURATION, AT(ws_ping_ms), "25s", 100, 24 * HOUR, NULL,
     "silence after which a WebSocket is pinged"},
    {"ws.close_timeout", CONFIG_DURATION, AT(ws_close_timeout_ms), "2s", 100,
     MINUTE, NULL, "time to answer a Close frame"},
    {"ws.fragments", CONFIG_UINT, AT(ws_fragments), "131072", 1, 16777216, NULL,
     "fragments of one message"},
    {"sse.keepalive", CONFIG_DURATION, AT(sse_keepalive_ms), "25s", 100,
     24 * HOUR, NULL, "silence after which an event stream gets a comment"},
    {"sse.retry", CONFIG_DURATION, AT(sse_retry_ms), "1s", 100, HOUR, NULL,
     "time after which an event stream is to come again"},
    {"poll.max_wait", CONFIG_DURATION, AT(poll_max_wait_ms), "60s", 100, HOUR,
     NULL, "time that a request for messages may wait for one"},
    {"history.count", CONFIG_UINT, AT(history_count), "1000", 0,
     UINT64_C(1) << 32, NULL, "messages kept per channel; 0 is none"},
    {"history.bytes", CONFIG_SIZE, AT(history_bytes), "1MiB", 0, 1024 * GIB,
     NULL, "bodies kept per channel; 0 is as many as history.count allows"},
    {"history.age", CONFIG_DURATION, AT(history_age_ms), "10m", 0, 87600 * HOUR,
     NULL, "time that a message is kept; 0 is no limit"},
    {"history.forget", CONFIG_DURATION, AT(history_forget_ms), "60m", 0,
     87600 * HOUR, NULL, "how long the trim mark of an empty channel is kept"},
    {"history.rule", CONFIG_TEXTS, AT(history_rule), "", 1,
     CONFIG_TEXTS_SIZE - 1, rule_shape,
     "a channel pattern with its own history; may be given several times"},
    {"store", CONFIG_TEXT, AT(store), "memory", 1, CONFIG_TEXT_SIZE - 1,
     store_shape,
     "where history is kept: memory, or the file of a durable store"},
    {"store.size", CONFIG_SIZE, AT(store_size), "1GiB", 16 * MIB, 1024 * GIB,
     NULL, "most that the store may take"},
    {"store.full", CONFIG_ENUM, AT(store_full), "evict", 0, 0, full_choices,
     "a full store drops the oldest messages or refuses new ones"},
    {"idempotency.window", CONFIG_DURATION, AT(idempotency_window_ms), "10m", 0,
     24 * HOUR, NULL,
     "time that an idempotency key is remembered; 0 is not at all"},
    {"replay.limit", CONFIG_UINT, AT(replay_limit), "1000", 1, 100000, NULL,
     "messages of one answer to a request for history"},
    {"batch.max", CONFIG_UINT, AT(batch_max), "1000", 1, 100000, NULL,
     "items of one batch"},
    {"channels.per_connection", CONFIG_UINT, AT(channels_per_connection), "256",
     1, 65536, NULL, "channels that one connection may subscribe to"},
    {"connections.max", CONFIG_UINT, AT(connections_max), "0", 0, 16777216,
     NULL, "connections per worker; 0 is from the descriptor limit"},
    {"drain.notice", CONFIG_DURATION, AT(drain_notice_ms), "0s", 0, HOUR, NULL,
     "time between telling clients of a shutdown and its start"},
    {"drain.time", CONFIG_DURATION, AT(drain_time_ms), "10s", 0, 24 * HOUR,
     NULL, "time that a shutdown may take"},
    {"watchdog", CONFIG_DURATION, AT(watchdog_ms), "3s", 500, 10 * MINUTE, NULL,
     "a worker that stands still for so long is replaced"},
    {"socket.lowat", CONFIG_SIZE, AT(socket_lowat), "16KiB", KIB, 16 * MIB,
     NULL, "unsent bytes that the kernel holds per connection"},
    {"socket.uring", CONFIG_ENUM, AT(socket_uring), "auto", 0, 0, uring_choices,
     "send by io_uring where the kernel has it"},
    {"socket.file_mode", CONFIG_MODE, AT(socket_file_mode), "0660", 0, 0777,
     NULL, "permissions of a Unix socket, octal"},
    {"log.level", CONFIG_ENUM, AT(log_level), "info", 0, 0, log_choices,
     "the least important lines that are still logged"},
};

enum { SETTINGS = sizeof settings / sizeof *settings };
_Static_assert((int)SETTINGS <= (int)CONFIG_SETTINGS_MAX,
               "raise CONFIG_SETTINGS_MAX");

const config_setting_s *config_settings(size_t *count) {
  *count = SETTINGS;
  return settings;
}

const config_setting_s *config_find(const char *name) {
  for (size_t i = 0; i < SETTINGS; i++)
    if (strcmp(settings[i].name, name) == 0)
      return &settings[i];
  return NULL;
}

static void *member_of(crier_config_s *config, const config_setting_s *s) {
  return (char *)config + s->offset;
}

static const void *member_in(const crier_config_s *config,
                             const config_setting_s *s) {
  return (const char *)config + s->offset;
}

config_from_e config_from(const crier_config_s *config,
                          const config_setting_s *setting) {
  return (config_from_e)config->from[setting - settings];
}

/* ---- Texts ------------------------------------------------------------- */

const char *config_shown(const char *text, char out[CONFIG_SHOWN_MAX]) {
  const size_t most = CONFIG_SHOWN_MAX - sizeof "...";
  size_t n = 0;
  for (; n < most && text[n]; n++)
    out[n] = iscntrl((unsigned char)text[n]) ? '?' : text[n];
  if (text[n]) {
    while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
      n--; /* not in the middle of a character */
    memcpy(out + n, "...", sizeof "...");
  } else
    out[n] = '\0';
  return out;
}

/* CRIER_HTTP_HEADER_BYTES for http.header_bytes. */
static const char *variable_of(const char *name, char out[CONFIG_SHOWN_MAX]) {
  const size_t n = (size_t)snprintf(out, CONFIG_SHOWN_MAX, "CRIER_%s", name);
  for (size_t i = 0; i < n && i < CONFIG_SHOWN_MAX; i++)
    out[i] = out[i] == '.' ? '_' : (char)toupper((unsigned char)out[i]);
  return out;
}

/* Where an error goes, and the name of its setting where it was written. */
typedef struct {
  char *text;
  size_t len;
  const config_setting_s *setting;
  config_from_e from;
} report_s;

FACIL_PRINTF(2, 3) static int refuse(const report_s *r, const char *fmt, ...) {
  char variable[CONFIG_SHOWN_MAX];
  char what[CONFIG_ERROR_MAX];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  snprintf(r->text, r->len, "crier: %s: %s",
           r->from == CONFIG_FROM_ENVIRONMENT
               ? variable_of(r->setting->name, variable)
               : r->setting->name,
           what);
  errno = EINVAL;
  return -1;
}

FACIL_PRINTF(3, 4)
static int complain(char *err, size_t err_len, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(err, err_len, fmt, args);
  va_end(args);
  errno = EINVAL;
  return -1;
}

/* ---- Units, both ways -------------------------------------------------- */

typedef struct {
  const char *text;
  uint64_t worth;
} unit_s;

static const unit_s size_units[] = {{"", 1},      {"B", 1},    {"K", KIB},
                                    {"KiB", KIB}, {"M", MIB},  {"G", GIB},
                                    {"MiB", MIB}, {"GiB", GIB}};
static const unit_s time_units[] = {
    {"", SECOND}, {"ms", 1}, {"s", SECOND}, {"m", MINUTE}, {"h", HOUR}};
static const unit_s no_units[] = {{"", 1}};

/* Each value is written with the first that divides it and leaves enough. */
static void format_size(uint64_t v, char *out, size_t len) {
  static const unit_s units[] = {{"GiB", GIB}, {"MiB", MIB}, {"KiB", KIB}};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (v && v % units[i].worth == 0) {
      snprintf(out, len, "%llu%s", (unsigned long long)(v / units[i].worth),
               units[i].text);
      return;
    }
  snprintf(out, len, "%lluB", (unsigned long long)v);
}

/* 60s, not 1m: minutes and hours from two on. */
static void format_duration(uint64_t v, char *out, size_t len) {
  if (v >= 2 * HOUR && v % HOUR == 0)
    snprintf(out, len, "%lluh", (unsigned long long)(v / HOUR));
  else if (v >= 2 * MINUTE && v % MINUTE == 0)
    snprintf(out, len, "%llum", (unsigned long long)(v / MINUTE));
  else if (v % SECOND == 0)
    snprintf(out, len, "%llus", (unsigned long long)(v / SECOND));
  else
    snprintf(out, len, "%llums", (unsigned long long)v);
}

static void format_number(config_type_e type, uint64_t v, char *out,
                          size_t len) {
  if (type == CONFIG_SIZE)
    format_size(v, out, len);
  else if (type == CONFIG_DURATION)
    format_duration(v, out, len);
  else
    snprintf(out, len, type == CONFIG_MODE ? "%04llo" : "%llu",
             (unsigned long long)v);
}

typedef enum { READ_OK, READ_NONSENSE, READ_TOO_BIG } read_e;

/* Digits, at least one; *rest is what follows them. */
static read_e read_digits(const char *text, uint64_t base, uint64_t *out,
                          const char **rest) {
  bool fits = true;
  uint64_t v = 0;
  const char *p = text;
  for (; *p >= '0' && (uint64_t)(*p - '0') < base; p++) {
    const uint64_t digit = (uint64_t)(*p - '0');
    fits = fits && v <= (UINT64_MAX - digit) / base;
    v = fits ? v * base + digit : 0;
  }
  *rest = p;
  *out = v;
  return p == text ? READ_NONSENSE : fits ? READ_OK : READ_TOO_BIG;
}

static const unit_s *find_unit(const unit_s *units, size_t n, const char *text,
                               int (*compare)(const char *, const char *)) {
  for (size_t i = 0; i < n; i++)
    if (compare(units[i].text, text) == 0)
      return &units[i];
  return NULL;
}

static const unit_s *unit_of(config_type_e type, const char *text) {
  if (type == CONFIG_SIZE)
    return find_unit(size_units, sizeof size_units / sizeof *size_units, text,
                     strcasecmp);
  if (type == CONFIG_DURATION)
    return find_unit(time_units, sizeof time_units / sizeof *time_units, text,
                     strcmp);
  return find_unit(no_units, 1, text, strcmp);
}

static read_e read_number(config_type_e type, const char *text, uint64_t *out) {
  const char *rest;
  uint64_t v;
  read_e result = read_digits(text, type == CONFIG_MODE ? 8 : 10, &v, &rest);
  if (result == READ_NONSENSE)
    return result;
  const unit_s *unit = unit_of(type, rest);
  if (!unit)
    return READ_NONSENSE;
  if (result == READ_OK && v > UINT64_MAX / unit->worth)
    return READ_TOO_BIG;
  *out = v * unit->worth;
  return result;
}

/* ---- One value of each type -------------------------------------------- */

static const char *noun_of(config_type_e type) {
  switch (type) {
  case CONFIG_SIZE:
    return "a size (a number with B, KiB, MiB or GiB)";
  case CONFIG_DURATION:
    return "a duration (a number with ms, s, m or h)";
  case CONFIG_MODE:
    return "an octal file mode";
  default:
    return "a number";
  }
}

static int set_number(void *member, const config_setting_s *s,
                      const char *value, const report_s *r) {
  char shown[CONFIG_SHOWN_MAX], min[32], max[32];
  uint64_t v = 0;
  const read_e result = read_number(s->type, value, &v);
  if (result == READ_NONSENSE)
    return refuse(r, "'%s' is not %s", config_shown(value, shown),
                  noun_of(s->type));
  if (result == READ_TOO_BIG || v < s->min || v > s->max) {
    format_number(s->type, s->min, min, sizeof min);
    format_number(s->type, s->max, max, sizeof max);
    return refuse(r, "'%s' is out of range (%s to %s)",
                  config_shown(value, shown), min, max);
  }
  memcpy(member, &v, sizeof v);
  return 0;
}

static int set_bool(void *member, const char *value, const report_s *r) {
  static const char *const words[] = {"false", "true", "no", "yes",
                                      "off",   "on",   "0",  "1"};
  char shown[CONFIG_SHOWN_MAX];
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcasecmp(words[i], value) == 0) {
      *(bool *)member = i & 1;
      return 0;
    }
  return refuse(r, "'%s' is neither true nor false",
                config_shown(value, shown));
}

static void join_choices(const config_setting_s *s, const char *between,
                         char *out, size_t len) {
  size_t used = 0;
  out[0] = '\0';
  for (size_t i = 0; s->choices[i] && used < len; i++)
    used += (size_t)snprintf(out + used, len - used, "%s%s", i ? between : "",
                             s->choices[i]);
}

static int set_enum(void *member, const config_setting_s *s, const char *value,
                    const report_s *r) {
  char shown[CONFIG_SHOWN_MAX], all[128];
  for (unsigned i = 0; s->choices[i]; i++)
    if (strcmp(s->choices[i], value) == 0) {
      memcpy(member, &i, sizeof i);
      return 0;
    }
  join_choices(s, ", ", all, sizeof all);
  return refuse(r, "'%s' is none of %s", config_shown(value, shown), all);
}

/* ---- Texts and lists of them ------------------------------------------- */

/* Copies `len` bytes, which room is for as its row allows no more. */
static int read_text(char *out, const config_setting_s *s, const char *text,
                     size_t len, const report_s *r) {
  char shown[CONFIG_SHOWN_MAX];
  if (len < s->min)
    return refuse(r, "it must not be empty");
  if (len > s->max)
    return refuse(r, "'%s' is longer than %llu bytes",
                  config_shown(text, shown), (unsigned long long)s->max);
  for (size_t i = 0; i < len; i++)
    if (iscntrl((unsigned char)text[i]))
      return refuse(r, "'%s' holds a control character",
                    config_shown(text, shown));
  memcpy(out, text, len);
  out[len] = '\0';
  return 0;
}

static int add_text(config_texts_s *list, const config_setting_s *s,
                    const char *text, size_t len, const report_s *r) {
  if (len == 0)
    return 0;
  if (list->count == CONFIG_TEXTS_MAX)
    return refuse(r, "more than %d of them", CONFIG_TEXTS_MAX);
  if (read_text(list->text[list->count], s, text, len, r) < 0)
    return -1;
  list->count++;
  return 0;
}

/* Texts between semicolons, with spaces around them. */
static int add_texts(config_texts_s *list, const config_setting_s *s,
                     const char *value, const report_s *r) {
  for (const char *p = value;; p++) {
    size_t len = strcspn(p, ";");
    const char *next = p + len;
    while (len && *p == ' ')
      p++, len--;
    while (len && p[len - 1] == ' ')
      len--;
    if (add_text(list, s, p, len, r) < 0)
      return -1;
    if (!*next)
      return 0;
    p = next;
  }
}

static int set_texts(config_texts_s *list, const config_setting_s *s,
                     const char *value, bool is_first, const report_s *r) {
  if (is_first || r->from == CONFIG_FROM_ENVIRONMENT)
    list->count = 0;
  return r->from == CONFIG_FROM_ENVIRONMENT
             ? add_texts(list, s, value, r)
             : add_text(list, s, value, strlen(value), r);
}

static void format_texts(const config_texts_s *list, char *out, size_t len) {
  size_t used = 0;
  snprintf(out, len, "%s", "");
  for (size_t i = 0; i < list->count && used < len; i++)
    used += (size_t)snprintf(out + used, len - used, "%s%s", i ? "; " : "",
                             list->text[i]);
}

/* ---- Addresses --------------------------------------------------------- */

static const char unix_prefix[] = "unix:";

static bool is_unix(const config_listen_s *l) {
  return l->address[0] == '/';
}

static int read_unix(config_listen_s *l, const char *path, const report_s *r) {
  const size_t len = strlen(path);
  if (path[0] != '/' || len >= sizeof l->address)
    return refuse(r,
                  "the path of a Unix socket begins with / and has at most "
                  "%zu bytes",
                  sizeof l->address - 1);
  memcpy(l->address, path, len + 1);
  l->port[0] = '\0';
  return 0;
}

static bool read_port(config_listen_s *l, const char *text) {
  const char *rest;
  uint64_t v;
  if (read_digits(text, 10, &v, &rest) != READ_OK || *rest || v > 65535)
    return false;
  snprintf(l->port, sizeof l->port, "%u", (unsigned)v);
  return true;
}

/* `host`, `len` bytes: an address of the family, or localhost. */
static bool read_host(config_listen_s *l, int family, const char *host,
                      size_t len) {
  struct in6_addr ignored;
  if (len >= sizeof l->address)
    return false;
  memcpy(l->address, host, len);
  l->address[len] = '\0';
  if (family == AF_INET && strcasecmp(l->address, "localhost") == 0)
    memcpy(l->address, "127.0.0.1", sizeof "127.0.0.1");
  return inet_pton(family, l->address, &ignored) == 1;
}

static int read_listen(config_listen_s *l, const char *value,
                       const report_s *r) {
  char shown[CONFIG_SHOWN_MAX];
  if (strncmp(value, unix_prefix, sizeof unix_prefix - 1) == 0)
    return read_unix(l, value + sizeof unix_prefix - 1, r);
  const bool is_v6 = value[0] == '[';
  const char *host = value + is_v6;
  const char *end = strchr(host, is_v6 ? ']' : ':');
  if (!end || end == host || (is_v6 && end[1] != ':'))
    return refuse(r, "'%s' is not HOST:PORT, [IPv6]:PORT or unix:/PATH",
                  config_shown(value, shown));
  if (!read_host(l, is_v6 ? AF_INET6 : AF_INET, host, (size_t)(end - host)))
    return refuse(r, "the host of '%s' is neither an IP address nor localhost",
                  config_shown(value, shown));
  if (!read_port(l, end + 1 + is_v6))
    return refuse(r, "the port of '%s' is not a number from 0 to 65535",
                  config_shown(value, shown));
  return 0;
}

static int add_listen(crier_config_s *config, const char *value,
                      const report_s *r) {
  if (config->listen_count == CONFIG_LISTEN_MAX)
    return refuse(r, "more than %d addresses", CONFIG_LISTEN_MAX);
  if (read_listen(&config->listen[config->listen_count], value, r) < 0)
    return -1;
  config->listen_count++;
  return 0;
}

/* Addresses between commas, with spaces around them. */
static int add_listens(crier_config_s *config, const char *value,
                       const report_s *r) {
  char one[CONFIG_ERROR_MAX];
  for (const char *p = value;; p++) {
    size_t len = strcspn(p, ",");
    const char *next = p + len;
    while (len && *p == ' ')
      p++, len--;
    while (len && p[len - 1] == ' ')
      len--;
    /* What is too long for `one` is too long for an address as well. */
    snprintf(one, sizeof one, "%.*s", (int)(len < 500 ? len : 500), p);
    if (add_listen(config, one, r) < 0)
      return -1;
    if (!*next)
      return 0;
    p = next;
  }
}

static void format_listen(const config_listen_s *l, char *out, size_t len) {
  if (is_unix(l))
    snprintf(out, len, "%s%s", unix_prefix, l->address);
  else
    snprintf(out, len, strchr(l->address, ':') ? "[%s]:%s" : "%s:%s",
             l->address, l->port);
}

_Static_assert(sizeof((config_listen_s *)0)->address ==
                   sizeof((struct sockaddr_un *)0)->sun_path,
               "a path that fits the one fits the other");

static in_port_t port_of(const config_listen_s *l) {
  const char *rest;
  uint64_t v = 0;
  (void)read_digits(l->port, 10, &v, &rest);
  return htons((uint16_t)v);
}

socklen_t config_listen_address(const config_listen_s *listen,
                                struct sockaddr_storage *out) {
  memset(out, 0, sizeof *out);
  if (is_unix(listen)) {
    struct sockaddr_un *un = (struct sockaddr_un *)out;
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, listen->address, sizeof un->sun_path);
    return sizeof *un;
  }
  if (strchr(listen->address, ':')) {
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = port_of(listen);
    inet_pton(AF_INET6, listen->address, &in6->sin6_addr);
    return sizeof *in6;
  }
  struct sockaddr_in *in = (struct sockaddr_in *)out;
  in->sin_family = AF_INET;
  in->sin_port = port_of(listen);
  inet_pton(AF_INET, listen->address, &in->sin_addr);
  return sizeof *in;
}

/* ---- Setting and showing ----------------------------------------------- */

static int set_listen(crier_config_s *config, const config_setting_s *s,
                      const char *value, const report_s *r) {
  if (r->from == CONFIG_FROM_ENVIRONMENT) {
    config->listen_count = 0;
    return add_listens(config, value, r);
  }
  if (config_from(config, s) != r->from)
    config->listen_count = 0;
  return add_listen(config, value, r);
}

static int set_value(crier_config_s *config, const config_setting_s *s,
                     const char *value, const report_s *r) {
  switch (s->type) {
  case CONFIG_LISTEN:
    return set_listen(config, s, value, r);
  case CONFIG_BOOL:
    return set_bool(member_of(config, s), value, r);
  case CONFIG_ENUM:
    return set_enum(member_of(config, s), s, value, r);
  case CONFIG_TEXT:
    return read_text(member_of(config, s), s, value, strlen(value), r);
  case CONFIG_TEXTS:
    return set_texts(member_of(config, s), s, value,
                     config_from(config, s) != r->from, r);
  default:
    return set_number(member_of(config, s), s, value, r);
  }
}

int config_set(crier_config_s *config, const config_setting_s *setting,
               const char *value, config_from_e from, char *err,
               size_t err_len) {
  const report_s report = {err, err_len, setting, from};
  if (set_value(config, setting, value, &report) < 0)
    return -1;
  config->from[setting - settings] = (unsigned char)from;
  return 0;
}

void config_init(crier_config_s *config) {
  char err[CONFIG_ERROR_MAX];
  memset(config, 0, sizeof *config);
  for (size_t i = 0; i < SETTINGS; i++)
    if (config_set(config, &settings[i], settings[i].usual, CONFIG_FROM_DEFAULT,
                   err, sizeof err) < 0)
      __builtin_trap(); /* a default that its own row refuses */
}

static void format_listens(const crier_config_s *config, char *out,
                           size_t len) {
  char one[sizeof(config_listen_s) + sizeof unix_prefix];
  size_t used = 0;
  for (size_t i = 0; i < config->listen_count && used < len; i++) {
    format_listen(&config->listen[i], one, sizeof one);
    used +=
        (size_t)snprintf(out + used, len - used, "%s%s", i ? ", " : "", one);
  }
}

void config_format(const crier_config_s *config,
                   const config_setting_s *setting, char *out, size_t len) {
  const void *member = member_in(config, setting);
  switch (setting->type) {
  case CONFIG_LISTEN:
    format_listens(config, out, len);
    return;
  case CONFIG_BOOL:
    snprintf(out, len, "%s", *(const bool *)member ? "true" : "false");
    return;
  case CONFIG_ENUM:
    snprintf(out, len, "%s", setting->choices[*(const unsigned *)member]);
    return;
  case CONFIG_TEXT:
    snprintf(out, len, "%s", (const char *)member);
    return;
  case CONFIG_TEXTS:
    format_texts(member, out, len);
    return;
  default:
    format_number(setting->type, *(const uint64_t *)member, out, len);
  }
}

const char *config_placeholder(const config_setting_s *setting, char *space,
                               size_t len) {
  switch (setting->type) {
  case CONFIG_LISTEN:
    return "ADDRESS";
  case CONFIG_BOOL:
    return "";
  case CONFIG_ENUM:
  case CONFIG_TEXT:
  case CONFIG_TEXTS:
    join_choices(setting, "|", space, len);
    return space;
  case CONFIG_SIZE:
    return "SIZE";
  case CONFIG_DURATION:
    return "TIME";
  case CONFIG_MODE:
    return "MODE";
  default:
    return "N";
  }
}

/* ---- The nearest name -------------------------------------------------- */

enum { DISTANCE_MAX = 64 };

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

static int lower(const char *s, size_t i) {
  return tolower((unsigned char)s[i]);
}

/* Optimal string alignment: row[i] is the distance of the first i bytes of a
 * to those of b that are done; two rows back is needed for a swap. */
size_t config_distance(const char *a, const char *b) {
  const size_t n = strnlen(a, DISTANCE_MAX), m = strnlen(b, DISTANCE_MAX);
  size_t rows[3][DISTANCE_MAX + 1];
  for (size_t i = 0; i <= n; i++)
    rows[0][i] = i;
  for (size_t j = 1; j <= m; j++) {
    size_t *now = rows[j % 3];
    const size_t *last = rows[(j + 2) % 3], *before = rows[(j + 1) % 3];
    now[0] = j;
    for (size_t i = 1; i <= n; i++) {
      const bool same = lower(a, i - 1) == lower(b, j - 1);
      now[i] = least(least(last[i], now[i - 1]) + 1, last[i - 1] + !same);
      if (i > 1 && j > 1 && lower(a, i - 1) == lower(b, j - 2) &&
          lower(a, i - 2) == lower(b, j - 1))
        now[i] = least(now[i], before[i - 2] + 1);
    }
  }
  return rows[m % 3][n];
}

const config_setting_s *config_nearest(const char *name) {
  const config_setting_s *best = &settings[0];
  for (size_t i = 1; i < SETTINGS; i++)
    if (config_distance(name, settings[i].name) <
        config_distance(name, best->name))
      best = &settings[i];
  return best;
}

/* ---- The environment --------------------------------------------------- */

static const char variable_prefix[] = "CRIER_";

/* Made up by Kubernetes for a service, and by Docker for a linked container,
 * that is called "crier": nobody's mistake. */
static bool is_injected(const char *name) {
  static const char *const exact[] = {"NAME", "PORT", "SERVICE_HOST",
                                      "SERVICE_PORT"};
  for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
    if (strcmp(name, exact[i]) == 0)
      return true;
  return strncmp(name, "SERVICE_PORT_", 13) == 0 ||
         strncmp(name, "ENV_", 4) == 0 ||
         (strncmp(name, "PORT_", 5) == 0 && isdigit((unsigned char)name[5]));
}

static const config_setting_s *find_variable(const char *variable) {
  char own[CONFIG_SHOWN_MAX];
  for (size_t i = 0; i < SETTINGS; i++)
    if (strcmp(variable_of(settings[i].name, own), variable) == 0)
      return &settings[i];
  return NULL;
}

static int unknown_variable(const char *variable, char *err, size_t err_len) {
  char shown[CONFIG_SHOWN_MAX], own[CONFIG_SHOWN_MAX];
  const config_setting_s *best = &settings[0];
  size_t best_distance = SIZE_MAX;
  for (size_t i = 0; i < SETTINGS; i++) {
    const size_t d =
        config_distance(variable, variable_of(settings[i].name, own));
    if (d < best_distance) {
      best = &settings[i];
      best_distance = d;
    }
  }
  return complain(err, err_len,
                  "crier: unknown setting '%s' in the environment "
                  "(did you mean '%s'?)",
                  config_shown(variable, shown), variable_of(best->name, own));
}

static int set_variable(crier_config_s *config, const char *entry, char *err,
                        size_t err_len) {
  char variable[128];
  const size_t len = strcspn(entry, "=");
  snprintf(variable, sizeof variable, "%.*s", (int)(len < 127 ? len : 127),
           entry);
  const config_setting_s *s = find_variable(variable);
  if (s && entry[len])
    return config_set(config, s, entry + len + 1, CONFIG_FROM_ENVIRONMENT, err,
                      err_len);
  if (is_injected(variable + sizeof variable_prefix - 1))
    return 0;
  return unknown_variable(variable, err, err_len);
}

int config_environment(crier_config_s *config, char *const envp[], char *err,
                       size_t err_len) {
  for (size_t i = 0; envp && envp[i]; i++)
    if (strncmp(envp[i], variable_prefix, sizeof variable_prefix - 1) == 0 &&
        set_variable(config, envp[i], err, err_len) < 0)
      return -1;
  return 0;
}

/* ---- What one setting asks of another ---------------------------------- */

/* `big` must be at least `times` as large as `small`. */
static int check_ratio(const crier_config_s *config, const char *big,
                       uint64_t times, const char *small, char *err,
                       size_t err_len) {
  const config_setting_s *b = config_find(big), *s = config_find(small);
  const uint64_t have = *(const uint64_t *)member_in(config, b);
  const uint64_t of = *(const uint64_t *)member_in(config, s);
  char have_text[32], of_text[32], need_text[32], factor[32] = "";
  if (of <= have / times)
    return 0;
  format_size(have, have_text, sizeof have_text);
  format_size(of, of_text, sizeof of_text);
  format_size(of * times, need_text, sizeof need_text);
  if (times > 1)
    snprintf(factor, sizeof factor, "%llu times ", (unsigned long long)times);
  return complain(err, err_len,
                  "crier: %s (%s) must be at least %s%s (%s): "
                  "set %s to %s or more",
                  big, have_text, factor, small, of_text, big, need_text);
}

static int check_listen(const crier_config_s *config, size_t i, char *err,
                        size_t err_len) {
  const access_s rules = {.open = config->open};
  const config_listen_s *l = &config->listen[i];
  struct sockaddr_storage address;
  char text[sizeof *l + sizeof unix_prefix];
  (void)config_listen_address(l, &address);
  if (access_may_listen(&rules, (struct sockaddr *)&address, err, err_len) < 0)
    return -1;
  for (size_t k = 0; k < i; k++)
    if (strcmp(l->address, config->listen[k].address) == 0 &&
        strcmp(l->port, config->listen[k].port) == 0 &&
        strcmp(l->port, "0") != 0) {
      format_listen(l, text, sizeof text);
      return complain(err, err_len, "crier: listen: %s is given twice", text);
    }
  return 0;
}

/* Made only to see that they can be: a crier_config_s holds no pointer, so
 * whoever uses the rules makes them again. */
static int check_rules(const crier_config_s *config, char *err,
                       size_t err_len) {
  const rule_s usual = {.count = config->history_count};
  rules_s *rules = rules_new(&usual);
  int result = rules ? 0 : -1;
  for (size_t i = 0; result == 0 && i < config->history_rule.count; i++)
    result = rules_add(rules, config->history_rule.text[i], err, err_len);
  const int code = errno;
  if (result < 0 && code == ENOMEM)
    snprintf(err, err_len, "crier: history.rule: out of memory");
  rules_free(rules);
  errno = code;
  return result;
}

int config_check(const crier_config_s *config, char *err, size_t err_len) {
  static const struct {
    const char *big;
    uint64_t times;
    const char *small;
  } ratios[] = {
      {"ring.size", 16, "message.max"}, /* a record is whole in the ring */
      {"tail.total", 4, "message.max"}, /* one message, a frame of each kind */
      {"tail.total", 1, "tail.size"},
      {"http.header_bytes", 1, "http.url"}, /* counts the request line too */
  };
  for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++)
    if (check_ratio(config, ratios[i].big, ratios[i].times, ratios[i].small,
                    err, err_len) < 0)
      return -1;
  for (size_t i = 0; i < config->listen_count; i++)
    if (check_listen(config, i, err, err_len) < 0) {
      errno = EINVAL;
      return -1;
    }
  return check_rules(config, err, err_len);
}
