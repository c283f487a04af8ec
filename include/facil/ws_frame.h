/* ws_frame.h - WebSocket frames as bytes (RFC 6455 section 5).
 *
 * The decoder takes bytes in pieces of any size, checks everything that the
 * RFC lets a receiver check, and reports one event at a time. It knows no
 * socket, allocates nothing, and copies no payload: it unmasks in place, and
 * the payload of an event points into the caller's bytes. Its state is small
 * and holds no pointers, so it may be copied or moved.
 *
 *     while ((type = ws_decode(&d, &limits, p, n, &used, &ev)) != WS_MORE) {
 *       ...look at ev, whose payload lies in p[0..used)...
 *       p += used;
 *       n -= used;
 *     }
 *
 * A frame that lies in the bytes as a whole makes exactly one event; one that
 * is split makes one for each part that carries payload. The same decoder
 * serves servers and clients. What is wrong ends the stream: there is one
 * WS_ERROR, which says how to close, and whatever comes later is ignored.
 *
 * All functions may be called on any thread; a decoder belongs to one. */
#ifndef FACIL_WS_FRAME_H
#define FACIL_WS_FRAME_H

#include "view.h"

/* The first byte of whole (unfragmented) frames: FIN and the opcode. */
#define WS_FIN 0x80
#define WS_FIN_TEXT 0x81
#define WS_FIN_BINARY 0x82
#define WS_FIN_CLOSE 0x88
#define WS_FIN_PING 0x89
#define WS_FIN_PONG 0x8A
/* And of the frames that begin or continue a fragmented message; WS_FIN | the
 * last one ends it. */
#define WS_TEXT 0x01
#define WS_BINARY 0x02
#define WS_CONTINUATION 0x00

#define WS_FRAME_HEAD_MAX 10   /* of a frame without a mask */
#define WS_CONTROL_MAX 125     /* payload of a control frame */
#define WS_CLOSE_FRAME_MAX 127 /* a whole close frame without a mask */

/* Close codes (RFC 6455 section 7.4.1, and IANA's registry). */
enum ws_close_code {
  WS_CLOSE_NORMAL = 1000,
  WS_CLOSE_GOING_AWAY = 1001,
  WS_CLOSE_PROTOCOL = 1002,
  WS_CLOSE_UNSUPPORTED = 1003,
  WS_CLOSE_NONE = 1005, /* stands for no code; never on the wire */
  WS_CLOSE_NOT_UTF8 = 1007,
  WS_CLOSE_POLICY = 1008,
  WS_CLOSE_TOO_BIG = 1009,
  WS_CLOSE_INTERNAL = 1011,
  WS_CLOSE_RESTART = 1012,
  WS_CLOSE_TRY_LATER = 1013
};

enum ws_event_type {
  WS_MORE,  /* nothing to report: all bytes were used, more are awaited */
  WS_DATA,  /* a part of a message */
  WS_PING,  /* a part of a ping: answer with its payload when it is whole */
  WS_PONG,  /* a part of a pong */
  WS_CLOSE, /* a part of a close frame: for ws_close_parse when it is whole */
  WS_ERROR  /* the peer broke the rules: close with close_code and reason */
};

typedef struct {
  uint64_t message_max;   /* payload bytes of a message: else 1009 */
  uint32_t fragments_max; /* frames of a message: else 1009. 0: no limit */
  bool expects_masked;    /* frames come from a client (section 5.1) */
} ws_limits_s;

/* Opaque; all zero is a new one. */
typedef struct {
  uint64_t frame_left;  /* payload bytes of this frame that are to come */
  uint64_t message_len; /* payload bytes declared by the message's frames */
  uint32_t fragments;   /* frames of this message so far */
  uint32_t utf8;        /* see utf8.h */
  uint8_t mask[4];      /* turned so that mask[0] is for the next byte */
  uint8_t head[14];     /* a head that came in parts */
  uint8_t head_len;
  uint8_t first;          /* the first byte of this frame */
  uint8_t message_opcode; /* of the message that is open; 0 if none is */
  uint8_t want;           /* enum ws_want in ws_frame.c */
  bool is_masked;         /* this frame */
  bool is_message_begun;  /* a part of this message was reported */
  bool is_control_begun;  /* a part of this control frame was reported */
} ws_decoder_s;

typedef struct {
  view_s payload;      /* unmasked, in the caller's bytes; may be empty */
  uint64_t remaining;  /* payload bytes of the same frame still to come */
  const char *reason;  /* WS_ERROR: static, ASCII, fits a close frame */
  uint16_t close_code; /* WS_ERROR: 1002, 1007 or 1009 */
  bool is_text;        /* WS_DATA */
  bool is_first;       /* the message or control frame begins with this part */
  bool is_last;        /* and ends with it */
} ws_event_s;

/* A decoder for a new connection. */
static inline void ws_decoder_init(ws_decoder_s *d) {
  *d = (ws_decoder_s){0};
}

/* Read on at `data`. Returns an enum ws_event_type. `*used` is how many of the
 * bytes are done with: all of them for WS_MORE and WS_ERROR. `*ev` is filled
 * unless WS_MORE is returned; its payload is valid as long as `data` is.
 *
 * The parts of a message are joined by the caller from is_first to is_last;
 * control frames may come between them, but never between the parts of another
 * frame. An empty last part is reported, other empty parts are not. Text is
 * checked as it comes: a part is reported only if valid text may begin with all
 * of the message so far, and a last part only if the whole message is valid.
 * A frame whose declared length would pass `message_max` is refused when its
 * head has been read. After the last part of a close frame, and after
 * WS_ERROR, everything is used and ignored. */
FACIL_PUBLIC FACIL_MUST_CHECK int ws_decode(ws_decoder_s *d,
                                            const ws_limits_s *limits,
                                            char *data, size_t len,
                                            size_t *used, ws_event_s *ev);

/* Whether the decoder stands between two frames, with no message open: where a
 * peer may end the stream without having cut something short. */
FACIL_PUBLIC bool ws_decoder_is_idle(const ws_decoder_s *d);

/* Whether an endpoint may put `code` on the wire: 1000 to 1003, 1007 to 1014,
 * 3000 to 4999. */
FACIL_PUBLIC bool ws_close_code_is_legal(uint16_t code);

/* Read the whole payload of a close frame (section 5.5.1). 0: `*code` is the
 * peer's, or WS_CLOSE_NONE if it sent none, and `*reason` (in `payload`, maybe
 * empty) is valid UTF-8. -1: `*code` is what to close with, 1002 or 1007, and
 * `*reason` is empty. */
FACIL_PUBLIC FACIL_MUST_CHECK int ws_close_parse(view_s payload, uint16_t *code,
                                                 view_s *reason);

/* The bytes of the head of an unmasked frame: 2, 4 or 10. */
static inline size_t ws_frame_head_size(uint64_t len) {
  return len <= 125 ? 2 : len <= 0xFFFF ? 4 : 10;
}

/* Write the head of an unmasked frame with `len` bytes of payload (below 2^63).
 * Returns its size. */
FACIL_PUBLIC size_t ws_frame_head(char out[WS_FRAME_HEAD_MAX],
                                  uint8_t first_byte, uint64_t len);

/* Write a whole unmasked close frame and return its size. `code` is a legal
 * one, or 0 or WS_CLOSE_NONE for an empty frame. `reason` is cut to 123 bytes
 * before a character that does not fit, and left out if it is not UTF-8. */
FACIL_PUBLIC size_t ws_close_frame(char out[WS_CLOSE_FRAME_MAX], uint16_t code,
                                   view_s reason);

/* Write a whole masked frame, as clients send it, and return its size, which is
 * ws_frame_head_size(payload.len) + 4 + payload.len. The caller chooses the
 * mask, at random if the peer is not his own (section 5.3). */
FACIL_PUBLIC size_t ws_frame_client(char *out, uint8_t first_byte,
                                    const uint8_t mask[4], view_s payload);

#endif
