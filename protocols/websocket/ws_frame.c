/* ws_frame.c - WebSocket frames as bytes (RFC 6455 section 5).
 *
 * The decoder stands in wire order: a head, checked first as far as its two
 * first bytes go and then as a whole, and its payload. A head that lies whole
 * in the input is read where it lies; only one that came in parts is gathered.
 *
 * Invariants: message_len counts declared bytes and never passes message_max,
 * so nobody has to hold more than that; every step uses a byte, or reports an
 * event and leaves the frame, so no input makes it turn on the spot; once it
 * WANTs NOTHING it stays so. */
#include "facil/ws_frame.h"
#include "facil/utf8.h"
#include <assert.h>

enum ws_want { WANT_HEAD, WANT_PAYLOAD, WANT_NOTHING };

_Static_assert(sizeof(ws_decoder_s) <= 56, "one for each idle connection");

enum {
  BITS_RESERVED = 0x70,
  BITS_OPCODE = 0x0F,
  BIT_CONTROL = 0x08,
  BIT_MASKED = 0x80,
  BITS_LENGTH = 0x7F,
  LENGTH_16 = 126, /* the length follows in 2 bytes */
  LENGTH_64 = 127, /* in 8 bytes */
  OPCODE_CLOSE = 0x8,
  OPCODE_PING = 0x9,
  OPCODE_PONG = 0xA
};

typedef struct {
  char *data;
  size_t len;
  size_t at; /* what lies before is done with */
} input_s;

/* --- masks (section 5.3) --- */

#define MASK_BLOCK 32

static uint64_t mask_word(const uint8_t mask[4]) {
  uint64_t word;
  memcpy(&word, mask, 4);
  memcpy((char *)&word + 4, mask, 4);
  return word;
}

/* All of a block is read before any of it is written, whatever its alignment,
 * so that the compiler may use its widest registers. */
static void mask_block(char *p, uint64_t word) {
  uint64_t a, b, c, d;
  memcpy(&a, p, 8);
  memcpy(&b, p + 8, 8);
  memcpy(&c, p + 16, 8);
  memcpy(&d, p + 24, 8);
  a ^= word;
  b ^= word;
  c ^= word;
  d ^= word;
  memcpy(p, &a, 8);
  memcpy(p + 8, &b, 8);
  memcpy(p + 16, &c, 8);
  memcpy(p + 24, &d, 8);
}

/* Mask or unmask `n` bytes, the first by mask[0]. */
static void mask_bytes(const uint8_t mask[4], char *p, size_t n) {
  const uint64_t word = mask_word(mask);
  for (; n >= MASK_BLOCK; n -= MASK_BLOCK, p += MASK_BLOCK)
    mask_block(p, word);
  for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
    uint64_t here;
    memcpy(&here, p, sizeof here);
    here ^= word;
    memcpy(p, &here, sizeof here);
  }
  for (size_t i = 0; i < n; i++)
    p[i] = (char)((uint8_t)p[i] ^ mask[i & 3]);
}

/* Make mask[0] the one for the byte after the next `n`. */
static void mask_turn(uint8_t mask[4], size_t n) {
  uint8_t old[4];
  memcpy(old, mask, 4);
  for (size_t i = 0; i < 4; i++)
    mask[i] = old[(i + n) & 3];
}

/* --- refusals --- */

/* Always false, so that a check can end with it. */
static bool refuse(ws_event_s *ev, uint16_t code, const char *reason) {
  *ev = (ws_event_s){.close_code = code, .reason = reason};
  return false;
}

static int end_with_error(ws_decoder_s *d, input_s *in) {
  d->want = WANT_NOTHING;
  in->at = in->len;
  return WS_ERROR;
}

/* --- the head (section 5.2) --- */

/* The size of a head, by its first two bytes. */
static size_t head_size(const uint8_t *head) {
  const size_t mask = head[1] & BIT_MASKED ? 4 : 0;
  switch (head[1] & BITS_LENGTH) {
  case LENGTH_16:
    return 4 + mask;
  case LENGTH_64:
    return 10 + mask;
  default:
    return 2 + mask;
  }
}

/* Keep what the input has of a head that is not whole there. */
static void gather_head(ws_decoder_s *d, input_s *in) {
  while (in->at < in->len &&
         (d->head_len < 2 || d->head_len < head_size(d->head)))
    d->head[d->head_len++] = (uint8_t)in->data[in->at++];
}

static bool control_is_right(const uint8_t *head, ws_event_s *ev) {
  if ((head[0] & BITS_OPCODE) > OPCODE_PONG)
    return refuse(ev, WS_CLOSE_PROTOCOL, "reserved opcode");
  if (!(head[0] & WS_FIN))
    return refuse(ev, WS_CLOSE_PROTOCOL, "fragmented control frame");
  if ((head[1] & BITS_LENGTH) > WS_CONTROL_MAX)
    return refuse(ev, WS_CLOSE_PROTOCOL, "control frame above 125 bytes");
  return true;
}

static bool data_is_right(const ws_decoder_s *d, const uint8_t *head,
                          ws_event_s *ev) {
  const uint8_t opcode = head[0] & BITS_OPCODE;
  if (opcode > WS_BINARY)
    return refuse(ev, WS_CLOSE_PROTOCOL, "reserved opcode");
  if (opcode == WS_CONTINUATION && !d->message_opcode)
    return refuse(ev, WS_CLOSE_PROTOCOL, "continuation of no message");
  if (opcode != WS_CONTINUATION && d->message_opcode)
    return refuse(ev, WS_CLOSE_PROTOCOL, "new message inside a message");
  return true;
}

/* What the first two bytes can tell. */
static bool start_is_right(const ws_decoder_s *d, const ws_limits_s *limits,
                           const uint8_t *head, ws_event_s *ev) {
  const bool is_masked = head[1] & BIT_MASKED;
  if (head[0] & BITS_RESERVED)
    return refuse(ev, WS_CLOSE_PROTOCOL, "reserved bits are set");
  if (is_masked != limits->expects_masked)
    return refuse(ev, WS_CLOSE_PROTOCOL,
                  is_masked ? "masked frame from a server"
                            : "unmasked frame from a client");
  return head[0] & BIT_CONTROL ? control_is_right(head, ev)
                               : data_is_right(d, head, ev);
}

static uint64_t head_length(const uint8_t *head) {
  const uint8_t length = head[1] & BITS_LENGTH;
  return length == LENGTH_16   ? view_u16(head + 2)
         : length == LENGTH_64 ? view_u64(head + 2)
                               : length;
}

/* The top bit must be 0 and the form the shortest. */
static bool length_is_right(const uint8_t *head, uint64_t length,
                            ws_event_s *ev) {
  if (length >> 63)
    return refuse(ev, WS_CLOSE_PROTOCOL, "length above 63 bits");
  const size_t mask = head[1] & BIT_MASKED ? 4 : 0;
  if (head_size(head) != ws_frame_head_size(length) + mask)
    return refuse(ev, WS_CLOSE_PROTOCOL, "length not in its shortest form");
  return true;
}

/* Whether the message may grow by a frame of `length` bytes. */
static bool message_has_room(const ws_decoder_s *d, const ws_limits_s *limits,
                             uint64_t length, ws_event_s *ev) {
  if (limits->fragments_max && d->fragments >= limits->fragments_max)
    return refuse(ev, WS_CLOSE_TOO_BIG, "message of too many fragments");
  if (d->message_len > limits->message_max ||
      length > limits->message_max - d->message_len)
    return refuse(ev, WS_CLOSE_TOO_BIG, "message too big");
  return true;
}

static void begin_frame(ws_decoder_s *d, const uint8_t *head, uint64_t length) {
  d->first = head[0];
  d->is_masked = head[1] & BIT_MASKED;
  if (d->is_masked)
    memcpy(d->mask, head + head_size(head) - 4, 4);
  d->frame_left = length;
  d->want = WANT_PAYLOAD;
  if (head[0] & BIT_CONTROL) {
    d->is_control_begun = false;
    return;
  }
  if (head[0] & BITS_OPCODE)
    d->message_opcode = head[0] & BITS_OPCODE;
  d->message_len += length;
  d->fragments++;
}

/* --- the payload --- */

/* utf8 stands at UTF8_START by itself: no other text is let end. */
static void end_message(ws_decoder_s *d) {
  d->message_opcode = 0;
  d->message_len = 0;
  d->fragments = 0;
  d->is_message_begun = false;
}

/* Section 8.1: text is UTF-8, as a whole, not frame by frame. */
static bool text_is_right(ws_decoder_s *d, view_s part, bool is_last,
                          ws_event_s *ev) {
  if (utf8_check(&d->utf8, part.data, part.len) < 0)
    return refuse(ev, WS_CLOSE_NOT_UTF8, "text is not UTF-8");
  if (is_last && !utf8_is_whole(d->utf8))
    return refuse(ev, WS_CLOSE_NOT_UTF8, "text ends inside a character");
  return true;
}

static int report_data(ws_decoder_s *d, input_s *in, view_s part,
                       ws_event_s *ev) {
  const bool is_text = d->message_opcode == WS_TEXT;
  const bool is_last = (d->first & WS_FIN) && d->frame_left == 0;
  if (is_text && !text_is_right(d, part, is_last, ev))
    return end_with_error(d, in);
  if (part.len == 0 && !is_last)
    return WS_MORE;
  *ev = (ws_event_s){.payload = part,
                     .remaining = d->frame_left,
                     .is_text = is_text,
                     .is_first = !d->is_message_begun,
                     .is_last = is_last};
  d->is_message_begun = true;
  if (is_last)
    end_message(d);
  return WS_DATA;
}

static int report_control(ws_decoder_s *d, view_s part, ws_event_s *ev) {
  const uint8_t opcode = d->first & BITS_OPCODE;
  *ev = (ws_event_s){.payload = part,
                     .remaining = d->frame_left,
                     .is_first = !d->is_control_begun,
                     .is_last = d->frame_left == 0};
  d->is_control_begun = true;
  if (opcode == OPCODE_CLOSE && ev->is_last)
    d->want = WANT_NOTHING;
  return opcode == OPCODE_CLOSE  ? WS_CLOSE
         : opcode == OPCODE_PING ? WS_PING
                                 : WS_PONG;
}

static int take_payload(ws_decoder_s *d, input_s *in, ws_event_s *ev) {
  size_t n = in->len - in->at;
  if (n > d->frame_left)
    n = (size_t)d->frame_left;
  char *part = in->data + in->at;
  if (d->is_masked) {
    mask_bytes(d->mask, part, n);
    mask_turn(d->mask, n);
  }
  in->at += n;
  d->frame_left -= n;
  if (d->frame_left == 0) {
    d->want = WANT_HEAD;
    d->head_len = 0;
  }
  return d->first & BIT_CONTROL ? report_control(d, view_of(part, n), ev)
                                : report_data(d, in, view_of(part, n), ev);
}

static int take_head(ws_decoder_s *d, const ws_limits_s *limits, input_s *in,
                     ws_event_s *ev) {
  const uint8_t *head = (const uint8_t *)in->data + in->at;
  size_t have = in->len - in->at;
  if (d->head_len == 0 && have >= 2 && have >= head_size(head)) {
    in->at += head_size(head);
  } else {
    gather_head(d, in);
    head = d->head;
    have = d->head_len;
  }
  if (have < 2)
    return WS_MORE;
  if (!start_is_right(d, limits, head, ev))
    return end_with_error(d, in);
  if (have < head_size(head))
    return WS_MORE;
  const uint64_t length = head_length(head);
  if (!length_is_right(head, length, ev))
    return end_with_error(d, in);
  if (!(head[0] & BIT_CONTROL) && !message_has_room(d, limits, length, ev))
    return end_with_error(d, in);
  begin_frame(d, head, length);
  return length == 0 ? take_payload(d, in, ev) : WS_MORE;
}

int ws_decode(ws_decoder_s *d, const ws_limits_s *limits, char *data,
              size_t len, size_t *used, ws_event_s *ev) {
  input_s in = {.data = data, .len = len};
  int result = WS_MORE;
  while (result == WS_MORE && in.at < len) {
    if (d->want == WANT_HEAD)
      result = take_head(d, limits, &in, ev);
    else if (d->want == WANT_PAYLOAD)
      result = take_payload(d, &in, ev);
    else
      in.at = len;
  }
  *used = in.at;
  return result;
}

bool ws_decoder_is_idle(const ws_decoder_s *d) {
  return d->want == WANT_HEAD && d->head_len == 0 && d->message_opcode == 0;
}

/* --- close frames (sections 5.5.1 and 7.4) --- */

bool ws_close_code_is_legal(uint16_t code) {
  return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
         (code >= 3000 && code <= 4999);
}

int ws_close_parse(view_s payload, uint16_t *code, view_s *reason) {
  *reason = view_of(NULL, 0);
  *code = WS_CLOSE_NONE;
  if (payload.len == 0)
    return 0;
  *code = WS_CLOSE_PROTOCOL;
  if (payload.len < 2 || !ws_close_code_is_legal(view_u16(payload.data)))
    return -1;
  *code = WS_CLOSE_NOT_UTF8;
  const view_s text = view_sub(payload, 2, payload.len);
  if (!utf8_is_valid(text))
    return -1;
  *code = view_u16(payload.data);
  *reason = text;
  return 0;
}

/* As much of `text` as fits, in whole characters. */
static view_s cut_text(view_s text, size_t max) {
  size_t len = text.len;
  if (len > max)
    for (len = max; len && ((uint8_t)text.data[len] & 0xC0) == 0x80;)
      len--;
  return view_sub(text, 0, len);
}

size_t ws_close_frame(char out[WS_CLOSE_FRAME_MAX], uint16_t code,
                      view_s reason) {
  if (code == 0 || code == WS_CLOSE_NONE)
    return ws_frame_head(out, WS_FIN_CLOSE, 0);
  assert(ws_close_code_is_legal(code));
  view_s text = cut_text(reason, WS_CONTROL_MAX - 2);
  if (!utf8_is_valid(text))
    text.len = 0;
  size_t at = ws_frame_head(out, WS_FIN_CLOSE, 2 + text.len);
  out[at++] = (char)(code >> 8);
  out[at++] = (char)(code & 0xFF);
  if (text.len)
    memcpy(out + at, text.data, text.len);
  return at + text.len;
}

/* --- encoding --- */

size_t ws_frame_head(char out[WS_FRAME_HEAD_MAX], uint8_t first_byte,
                     uint64_t len) {
  assert(len >> 63 == 0);
  const size_t size = ws_frame_head_size(len);
  out[0] = (char)first_byte;
  out[1] = (char)(size == 2 ? len : size == 4 ? LENGTH_16 : LENGTH_64);
  for (size_t i = size; i > 2; i--, len >>= 8)
    out[i - 1] = (char)(len & 0xFF);
  return size;
}

size_t ws_frame_client(char *out, uint8_t first_byte, const uint8_t mask[4],
                       view_s payload) {
  size_t at = ws_frame_head(out, first_byte, payload.len);
  out[1] = (char)((uint8_t)out[1] | BIT_MASKED);
  memcpy(out + at, mask, 4);
  at += 4;
  if (payload.len)
    memcpy(out + at, payload.data, payload.len);
  mask_bytes(mask, out + at, payload.len);
  return at + payload.len;
}
