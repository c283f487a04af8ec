/* websocket.h - WebSocket connections (RFC 6455) on facil.
 *
 * The carrier: handshake, frames, pings, the close handshake. What travels is a
 * dialect's: it gives a handler table and keeps its own bytes in the same
 * object as the connection. The invariant: only whole valid frames leave,
 * nothing after Close, and exactly one Close.
 *
 * Loop thread only. */
#ifndef FACIL_WEBSOCKET_H
#define FACIL_WEBSOCKET_H

#include "http.h"
#include "ws_frame.h"

typedef struct websocket_s websocket_s;

typedef struct {
  ws_limits_s limits;        /* of what peers send */
  uint32_t ping_ms;          /* ping after this long without a byte read */
  uint32_t close_timeout_ms; /* for the peer's Close after ours */
  uint32_t slow_timeout_ms;  /* a blocked peer that takes nothing for so long */
  size_t queue_limit;        /* no message is taken beyond half of it */
} websocket_settings_s;

/* One const table per dialect. All but on_close may be NULL. */
typedef struct {
  size_t size; /* bytes of the dialect's own, zeroed, for websocket_user;
                * aligned for pointers */
  /* The connection speaks WebSocket from here on. `arg` is websocket_upgrade's,
   * valid in the call only. */
  void (*on_open)(websocket_s *ws, void *arg);
  /* A whole message. The bytes are the caller's and may be changed; they end
   * with the call. */
  void (*on_message)(websocket_s *ws, view_s data, bool is_text);
  /* As in protocol_ops_s; not after a Close has been queued. */
  void (*on_ready)(websocket_s *ws);
  size_t (*on_sent)(websocket_s *ws, size_t sent);
  /* A ping is about to be sent. */
  void (*on_ping)(websocket_s *ws);
  /* The process winds down. Default: websocket_close with 1001. */
  void (*on_shutdown)(websocket_s *ws);
  /* The end; free what websocket_user points at, not the bytes themselves. */
  void (*on_close)(websocket_s *ws);
} websocket_handler_s;

/* Of this process, before the first upgrade. Copied. */
FACIL_PUBLIC void websocket_set(const websocket_settings_s *settings);

/* Answer `h`, a GET that wants an upgrade, with 101 and hand the connection
 * over, or with the status that the handshake deserves (400, 405, 426, 503
 * without memory). `subprotocols` and `handlers` are of the same order; one
 * with an empty name is for clients that name none of ours; without such a one
 * those are refused (400). `h` is gone after this. */
FACIL_PUBLIC void websocket_upgrade(http_s *h, const view_s *subprotocols,
                                    const websocket_handler_s *const *handlers,
                                    size_t count, void *arg);

/* The dialect's own bytes. */
FACIL_PUBLIC void *websocket_user(websocket_s *ws);
FACIL_PUBLIC websocket_s *websocket_of(void *user);
FACIL_PUBLIC intptr_t websocket_uuid(const websocket_s *ws);
FACIL_PUBLIC bool websocket_is(const websocket_s *ws,
                               const websocket_handler_s *handler);

/* The WebSocket connection that `uuid` names, or NULL. */
FACIL_PUBLIC websocket_s *websocket_find(intptr_t uuid);

/* Run `task` for each WebSocket connection of this process, in later turns. */
FACIL_PUBLIC void websocket_each(void (*task)(websocket_s *ws));

/* Whether a Close has been queued: nothing more can be sent. */
FACIL_PUBLIC bool websocket_is_closing(const websocket_s *ws);

/* Queue one frame of our own (an answer, not what is published). A peer whose
 * queue is full is aborted. */
FACIL_PUBLIC void websocket_write(websocket_s *ws, view_s data, bool is_text);

/* An answer of about `bytes` is to come (later it is there: is_owed false): as
 * long as what is owed and what is queued are half of the queue_limit together,
 * no more messages are taken. So a peer that asks for much at once and reads
 * waits, and is not aborted. Always in pairs, the second with the same bytes.
 */
FACIL_PUBLIC void websocket_owe(websocket_s *ws, size_t bytes, bool is_owed);

/* Queue a Close and end the connection when the peer has answered it or the
 * time for that is over. The first call counts. */
FACIL_PUBLIC void websocket_close(websocket_s *ws, uint16_t code,
                                  view_s reason);

#endif
