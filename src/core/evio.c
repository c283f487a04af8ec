/* evio.c - epoll, level-triggered. Invariant: an event is reported with the tag
 * of the registration that caused it, and never after evio_remove in a later
 * review. */
#include "evio.h"
#include "facil/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS 256

static int epoll_fd = -1;
static struct epoll_event events[EVENTS];
static int event_count; /* of the last wait */

int evio_open(void) {
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  return epoll_fd < 0 ? -1 : 0;
}

void evio_close(void) {
  if (epoll_fd >= 0)
    close(epoll_fd);
  epoll_fd = -1;
}

static int control(int op, int fd, uint64_t tag, uint8_t mask) {
  struct epoll_event ev = {.data = {.u64 = tag}};
  if (mask & EVIO_IN)
    ev.events |= EPOLLIN;
  if (mask & EVIO_OUT)
    ev.events |= EPOLLOUT;
  return epoll_ctl(epoll_fd, op, fd, &ev);
}

int evio_add(int fd, uint64_t tag, uint8_t mask) {
  return control(EPOLL_CTL_ADD, fd, tag, mask);
}

int evio_change(int fd, uint64_t tag, uint8_t mask) {
  return control(EPOLL_CTL_MOD, fd, tag, mask);
}

void evio_remove(int fd) {
  struct epoll_event ev = {0};
  (void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &ev);
}

int evio_wait(int timeout_ms) {
  event_count = epoll_wait(epoll_fd, events, EVENTS, timeout_ms);
  if (event_count < 0 && errno != EINTR) {
    log_line(LOG_ERROR, "epoll", "error=\"%s\"", strerror(errno));
    abort();
  }
  if (event_count < 0)
    event_count = 0;
  return event_count;
}

void evio_dispatch(void (*on_event)(uint64_t tag, uint8_t flags)) {
  for (int i = 0; i < event_count; i++) {
    uint32_t e = events[i].events;
    uint8_t flags =
        (uint8_t)((e & EPOLLIN ? EVIO_IN : 0) | (e & EPOLLOUT ? EVIO_OUT : 0) |
                  (e & (EPOLLHUP | EPOLLERR) ? EVIO_HUP : 0));
    on_event(events[i].data.u64, flags);
  }
}
