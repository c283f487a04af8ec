/* http_chunks.c - a chunked body, decoded in place (RFC 9112 section 7.1).
 *
 * llhttp decodes; it is brought into the state after a head once, by a head of
 * ours. The bytes around the chunks' data, the frame, are also looked at here:
 * llhttp 8 takes a bare LF and a folded line at some places of a trailer, and
 * it counts nothing.
 *
 * Invariant: every byte is looked at once, as a byte of the frame or as data,
 * in the order of the wire; `decoded` never passes `seen`, so moving data to
 * the front overwrites only what has been looked at. */
#include "facil/http_parse.h"

#include <assert.h>
#include <llhttp.h>

#define EXTRA_MAX 4096 /* extensions and trailers together */
#define SIZE_DIGITS_MAX 16

typedef struct {
  llhttp_t parser;
  uint64_t total;    /* decoded bytes */
  uint32_t extra;    /* bytes of extensions and trailers */
  uint32_t line_len; /* bytes of the frame's line so far */
  uint8_t line; /* of the frame: 0 ends the data, 1 is a size, then trailers */
  char last;    /* byte of the frame, 0 after data */
  bool in_extension;
  bool is_over; /* done or refused: llhttp's state says nothing any more */
} __attribute__((may_alias)) chunks_s;

_Static_assert(sizeof(chunks_s) <= sizeof(http_chunks_s),
               "a decoder has to fit into http_chunks_s");
_Static_assert(_Alignof(chunks_s) <= _Alignof(http_chunks_s),
               "a decoder has to be aligned like http_chunks_s");

/* One call of http_chunks_feed. */
typedef struct {
  chunks_s *c;
  char *data;
  size_t seen;    /* bytes of `data` that were looked at */
  size_t decoded; /* bytes of `data` that are decoded */
  size_t limit;
  bool is_too_large; /* says the size of the next chunk */
  int status;        /* 0: fine so far */
} feed_s;

/* Whether `b` may be the next byte of the frame; counts it. */
static bool take_frame_byte(chunks_s *c, char b) {
  bool is_fine = (c->last == '\r') == (b == '\n') && /* CRLF or neither */
                 (b == '\r' || b == '\n' || b == '\t' ||
                  ((unsigned char)b >= 0x20 && b != 0x7f));
  if (c->last == '\n' && (b == ' ' || b == '\t' || b == ':'))
    is_fine = false; /* a folded line, or a field without a name */
  c->last = b;
  if (b == '\n') {
    c->line = c->line ? 2 : 1;
    c->line_len = 0;
    c->in_extension = false;
  } else if (b != '\r') {
    c->in_extension |= b == ';';
    c->line_len++;
    c->extra +=
        c->in_extension || c->line == 2 || c->line_len > SIZE_DIGITS_MAX;
  }
  return is_fine;
}

/* The frame's bytes up to `end`. */
static void take_frame(feed_s *f, size_t end) {
  while (f->seen < end && f->status == 0) {
    if (!take_frame_byte(f->c, f->data[f->seen++]))
      f->status = 400;
    else if (f->c->extra > EXTRA_MAX)
      f->status = 413;
  }
}

static int on_chunk_size(llhttp_t *p) {
  feed_s *f = (feed_s *)p->data;
  if (p->content_length > f->limit - f->c->total)
    f->is_too_large = true; /* 413, unless the frame was wrong before */
  return f->is_too_large ? -1 : 0;
}

static int on_chunk_data(llhttp_t *p, const char *at, size_t len) {
  feed_s *f = (feed_s *)p->data;
  take_frame(f, (size_t)(at - f->data));
  if (f->status)
    return -1;
  memmove(f->data + f->decoded, at, len); /* to where all has been seen */
  f->decoded += len;
  f->seen += len;
  f->c->total += len;
  f->c->line = 0;
  f->c->line_len = 0;
  f->c->last = 0;
  return 0;
}

static int on_body_end(llhttp_t *p) {
  (void)p;
  return HPE_PAUSED;
}

static const llhttp_settings_t chunk_settings = {
    .on_chunk_header = on_chunk_size,
    .on_body = on_chunk_data,
    .on_message_complete = on_body_end,
};

static chunks_s *chunks_of(http_chunks_s *c) {
  return (chunks_s *)(void *)c;
}

void http_chunks_init(http_chunks_s *chunks) {
  static const char head[] = "POST / HTTP/1.1\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n";
  chunks_s *c = chunks_of(chunks);
  memset(chunks, 0, sizeof *chunks);
  c->line = 1;
  llhttp_init(&c->parser, HTTP_REQUEST, &chunk_settings);
  llhttp_errno_t err = llhttp_execute(&c->parser, head, sizeof head - 1);
  assert(err == HPE_OK);
  (void)err;
}

int http_chunks_feed(http_chunks_s *chunks, char *data, size_t len,
                     size_t body_bytes, size_t *used, size_t *decoded,
                     int *status) {
  chunks_s *c = chunks_of(chunks);
  feed_s f = {.c = c, .data = data, .limit = body_bytes};
  *used = *decoded = 0;
  *status = 413;
  assert(!c->is_over);
  if (c->total > body_bytes)
    return -1;
  c->parser.data = &f;
  llhttp_errno_t err = llhttp_execute(&c->parser, data, len);
  c->parser.data = NULL;
  size_t end =
      err == HPE_OK ? len : (size_t)(llhttp_get_error_pos(&c->parser) - data);
  if (f.status == 0)
    take_frame(&f, end);
  if (f.status == 0 && err != HPE_OK && err != HPE_PAUSED)
    f.status = f.is_too_large ? 413 : 400;
  *status = f.status;
  c->is_over = f.status || err == HPE_PAUSED;
  if (f.status)
    return -1;
  *used = end;
  *decoded = f.decoded;
  return err == HPE_PAUSED ? 1 : 0;
}
