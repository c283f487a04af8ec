/* evio.h - the one module that knows epoll. Private to src/core.
 *
 * Level-triggered. After evio_remove has returned, no event of that descriptor
 * is reported that the caller could not tell apart: events carry the tag given
 * at evio_add, and a connection's tag is its uuid. */
#ifndef CRIER_EVIO_H
#define CRIER_EVIO_H

#include "facil/base.h"

enum {
  EVIO_IN = 1,
  EVIO_OUT = 2,
  EVIO_HUP = 4
}; /* HUP: error or both ends shut */

int evio_open(void); /* 0; -1 and errno. Never before a fork. */
void evio_close(void);
int evio_add(int fd, uint64_t tag, uint8_t mask);
int evio_change(int fd, uint64_t tag, uint8_t mask);
void evio_remove(int fd);

/* Wait at most `timeout_ms` (-1: for ever) for events and return their number;
 * an interrupted wait is 0 events. A broken epoll ends the process. */
int evio_wait(int timeout_ms);

/* Report each event of the last wait. */
void evio_dispatch(void (*on_event)(uint64_t tag, uint8_t flags));

#endif
