/* native.h - what the two files of our own dialect share. */
#ifndef CRIER_NATIVE_H
#define CRIER_NATIVE_H

#include "facil/websocket.h"
#include "subscribe.h"

extern const websocket_handler_s native_v1_handler;

/* Tell a crier.v1 connection that the broker is about to stop. */
void native_v1_notice(websocket_s *ws);

#endif
