/* log.c - a line is formatted in one buffer and leaves by one write, so lines
 * of several processes never mix. */
#include "facil/log.h"
#include "facil/clock.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define LINE 1024

static log_level_e limit = LOG_INFO;

void log_set_level(log_level_e level) {
  limit = level;
}

bool log_on(log_level_e level) {
  return level <= limit;
}

void log_line(log_level_e level, const char *event, const char *fmt, ...) {
  static const char *const names[] = {"error", "warn", "info", "debug"};
  if (!log_on(level))
    return;
  int saved = errno;
  char line[LINE];
  int n = snprintf(line, sizeof line, "%s %.64s pid=%ld ", names[level], event,
                   (long)getpid());
  va_list ap;
  va_start(ap, fmt);
  int m = vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
  va_end(ap);
  size_t len = (size_t)n + (m > 0 ? (size_t)m : 0);
  if (len > sizeof line - 2)
    len = sizeof line - 2;
  for (size_t i = 0; i < len; i++)
    if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
      line[i] = '?';
  line[len++] = '\n';
  ssize_t w = write(STDERR_FILENO, line, len);
  (void)w; /* nobody is left to be told */
  errno = saved;
}

bool log_seldom(uint64_t *last_ms) {
  uint64_t now = clock_ms();
  if (*last_ms && now - *last_ms < 1000)
    return false;
  *last_ms = now;
  return true;
}
