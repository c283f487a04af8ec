/* config.h - the settings: one table, from which the command line, the
 * environment, the help and the check are all made.
 *
 * A setting has one dotted name. On the command line it is --name VALUE or
 * --name=VALUE (cli.h); in the environment CRIER_ and the name in capitals with
 * `_` for each dot. No two names give the same variable (a test checks it), so
 * the way back needs no rule. The command line wins over the environment, the
 * environment over the default; a list is replaced as a whole.
 *
 * Sizes are bytes: a number with B, KiB, MiB, GiB or K, M, G, which mean the
 * same (powers of 1,024), in either letter case, or without a unit. Durations
 * are a number with ms, s, m or h, or of seconds without a unit. Texts hold no
 * control byte; in a list of them an empty one is none, so that `--name=` makes
 * the list of the environment empty.
 *
 * A crier_config_s holds no pointer: it may be copied, and be shared with
 * forked processes. Nothing here allocates or keeps state; any thread.
 * Whatever fails writes one whole line, without its end, into `err`. */
#ifndef CRIER_CONFIG_H
#define CRIER_CONFIG_H

#include <facil/base.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>

enum {
  CONFIG_LISTEN_MAX = 16,   /* addresses to listen on */
  CONFIG_SETTINGS_MAX = 64, /* rows that the table may have */
  CONFIG_TEXT_SIZE = 1024,  /* of a text, with its NUL */
  CONFIG_TEXTS_MAX = 32,    /* texts of a list */
  CONFIG_TEXTS_SIZE = 256,  /* of each of them, with its NUL */
  CONFIG_ERROR_MAX = 512,   /* an `err` of this size holds each line whole */
  CONFIG_VALUE_MAX = 8448   /* a value as config_format writes it */
};

typedef enum {
  CONFIG_BOOL,
  CONFIG_UINT,
  CONFIG_SIZE,
  CONFIG_DURATION,
  CONFIG_MODE,
  CONFIG_ENUM,
  CONFIG_TEXT,
  CONFIG_TEXTS,
  CONFIG_LISTEN
} config_type_e;

typedef enum {
  CONFIG_FROM_DEFAULT,
  CONFIG_FROM_ENVIRONMENT,
  CONFIG_FROM_COMMAND_LINE
} config_from_e;

typedef enum { CONFIG_SLOW_SKIP, CONFIG_SLOW_CLOSE } config_slow_e;
typedef enum { CONFIG_FULL_EVICT, CONFIG_FULL_REFUSE } config_full_e;
typedef enum { CONFIG_URING_AUTO, CONFIG_URING_OFF } config_uring_e;
typedef enum {
  CONFIG_LOG_ERROR,
  CONFIG_LOG_WARN,
  CONFIG_LOG_INFO,
  CONFIG_LOG_DEBUG
} config_log_e;

/* Where to listen: an address and a port, or the path of a Unix socket. */
typedef struct {
  char address[108]; /* IPv4 or IPv6 without brackets; or the path */
  char port[6];      /* decimal, "0": any free one; empty for a Unix socket */
} config_listen_s;

/* A list of texts, none of them empty. */
typedef struct {
  char text[CONFIG_TEXTS_MAX][CONFIG_TEXTS_SIZE];
  size_t count;
} config_texts_s;

/* The settings in force. Sizes in bytes. */
typedef struct {
  config_listen_s listen[CONFIG_LISTEN_MAX];
  size_t listen_count; /* at least 1 */
  bool open;
  uint64_t workers; /* 0: one per usable core */
  uint64_t message_max;
  uint64_t ring_size;
  uint64_t tail_size;
  uint64_t tail_total;
  uint64_t queue_limit;
  unsigned slow; /* config_slow_e */
  uint64_t slow_timeout_ms;
  uint64_t http_header_bytes;
  uint64_t http_header_count;
  uint64_t http_url;
  uint64_t http_timeout_ms;
  uint64_t http_idle_ms;
  uint64_t ws_ping_ms;
  uint64_t ws_close_timeout_ms;
  uint64_t ws_fragments;
  uint64_t sse_keepalive_ms;
  uint64_t sse_retry_ms;
  uint64_t poll_max_wait_ms;
  uint64_t history_count;       /* 0: none */
  uint64_t history_bytes;       /* 0: as many as history_count allows */
  uint64_t history_age_ms;      /* 0: no limit */
  uint64_t history_forget_ms;   /* of an empty channel's trim mark */
  config_texts_s history_rule;  /* each as rules_add takes it */
  char store[CONFIG_TEXT_SIZE]; /* "memory", or a path */
  uint64_t store_size;
  unsigned store_full;            /* config_full_e */
  uint64_t idempotency_window_ms; /* 0: no key is remembered */
  uint64_t replay_limit;
  uint64_t batch_max; /* items */
  uint64_t channels_per_connection;
  uint64_t connections_max; /* per worker; 0: from the descriptor limit */
  uint64_t drain_notice_ms;
  uint64_t drain_time_ms;
  uint64_t watchdog_ms;
  uint64_t socket_lowat;
  unsigned socket_uring; /* config_uring_e */
  uint64_t socket_file_mode;
  unsigned log_level;                      /* config_log_e */
  unsigned char from[CONFIG_SETTINGS_MAX]; /* config_from_e, by row */
} crier_config_s;

typedef struct {
  const char *name;
  config_type_e type;
  size_t offset;              /* of its member in crier_config_s */
  const char *usual;          /* the default, as a user would write it */
  uint64_t min, max;          /* of a number, size, duration or mode; of the
                                 bytes of a text or of each of a list */
  const char *const *choices; /* of an enum, in its order; of a text what it
                                 looks like; ends with NULL */
  const char *help;           /* one line */
} config_setting_s;

/* The table, *count rows, and one row of it by its exact name or NULL. */
const config_setting_s *config_settings(size_t *count);
const config_setting_s *config_find(const char *name);

/* Every setting at its default. */
void config_init(crier_config_s *config);

/* Set one from its text. A second address or text of a list is added to those
 * of the same origin; from the environment addresses are separated by commas,
 * texts by semicolons (one that holds a semicolon can only come otherwise).
 * -1 and EINVAL: `value` is no such value; then the config is of no use. */
FACIL_MUST_CHECK int config_set(crier_config_s *config,
                                const config_setting_s *setting,
                                const char *value, config_from_e from,
                                char *err, size_t err_len);

/* Set all that `envp` (ends with NULL) holds in CRIER_ variables. Those that
 * Kubernetes and Docker make up for a service or a container called "crier"
 * (CRIER_PORT, CRIER_SERVICE_HOST, CRIER_PORT_8080_TCP…) are passed over.
 * -1 and EINVAL: an unknown variable or a wrong value. */
FACIL_MUST_CHECK int config_environment(crier_config_s *config,
                                        char *const envp[], char *err,
                                        size_t err_len);

/* What one setting asks of another, once all are set; also whether each
 * address may be listened on (access.h) and each history rule is one (rules.h).
 * -1 and EINVAL, or ENOMEM. */
FACIL_MUST_CHECK int config_check(const crier_config_s *config, char *err,
                                  size_t err_len);

/* The value in force as a user would write it; addresses with ", "
 * between, texts with "; "; of no texts nothing. Cut off at `len`, which
 * CONFIG_VALUE_MAX makes enough. */
void config_format(const crier_config_s *config,
                   const config_setting_s *setting, char *out, size_t len);

config_from_e config_from(const crier_config_s *config,
                          const config_setting_s *setting);

/* What a value looks like, for help: `SIZE`, `skip|close`. Static, or in
 * `space`. */
const char *config_placeholder(const config_setting_s *setting, char *space,
                               size_t len);

/* The address as the socket calls take it; the length is returned. */
socklen_t config_listen_address(const config_listen_s *listen,
                                struct sockaddr_storage *out);

/* How many letters must be added, removed, replaced or swapped with their
 * neighbour to make one of the other; letter case is free. Of each only the
 * first 64 bytes count. */
size_t config_distance(const char *a, const char *b);

/* The setting whose name is nearest to `name`. Never NULL. */
const config_setting_s *config_nearest(const char *name);

/* What a user wrote, fit for a line of text: control bytes as `?`, at most 60
 * bytes and then "...". Written to `out`, which is also returned. */
enum { CONFIG_SHOWN_MAX = 64 };
const char *config_shown(const char *text, char out[CONFIG_SHOWN_MAX]);

#endif
