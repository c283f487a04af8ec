/* native.h - what the two files of our own dialect share. */
#ifndef CRIER_NATIVE_H
#define CRIER_NATIVE_H

#include "dialects_internal.h"
#include "facil/websocket.h"

#define NATIVE_CHANNELS_MAX 256 /* in one query */

/* From where on a subscriber wants messages. */
typedef struct {
  bool is_now;
  bool is_id; /* else: all that is kept, or the last N */
  uint64_t id;
} native_since_s;

/* What the request that opens a connection asks for. */
typedef struct {
  native_since_s since;
  bool takes_channels;
  size_t count;
  struct {
    view_s name;
  } channels[NATIVE_CHANNELS_MAX];
} native_open_s;

extern const websocket_handler_s native_v1_handler;

/* Tell a crier.v1 connection that the broker is about to stop. */
void native_v1_notice(websocket_s *ws);

/* Read the text form of `since`. False: it is none. */
bool native_since(view_s text, native_since_s *since);

/* Whether a subscriber that joins at `cursor` lacks what it asked for. */
bool native_gap(const native_since_s *since, uint64_t cursor, uint64_t *from,
                uint64_t *to);

#endif
