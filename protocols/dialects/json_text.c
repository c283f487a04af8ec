/* json_text.c - JSON strings: escapes where RFC 8259 section 7 wants them, and
 * nowhere else. */
#include "json_text.h"
#include <limits.h>
#include <openssl/evp.h>

/* Extra bytes that the escape of a byte takes. */
static size_t extra_of(unsigned char c) {
  if (c == '"' || c == '\\')
    return 1;
  if (c >= 0x20)
    return 0;
  return c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f' ? 1 : 5;
}

size_t json_string_size(view_s text) {
  size_t n = text.len + 2;
  for (size_t i = 0; i < text.len; i++)
    n += extra_of((unsigned char)text.data[i]);
  return n;
}

static char *escape(char *out, unsigned char c) {
  static const char hex[] = "0123456789abcdef";
  *out++ = '\\';
  switch (c) {
  case '\n':
    *out++ = 'n';
    break;
  case '\r':
    *out++ = 'r';
    break;
  case '\t':
    *out++ = 't';
    break;
  case '\b':
    *out++ = 'b';
    break;
  case '\f':
    *out++ = 'f';
    break;
  case '"':
  case '\\':
    *out++ = (char)c;
    break;
  default:
    memcpy(out, "u00", 3);
    out[3] = hex[c >> 4];
    out[4] = hex[c & 15];
    out += 5;
  }
  return out;
}

char *json_string_write(char *out, view_s text) {
  *out++ = '"';
  size_t clean = 0; /* since the last escape */
  for (size_t i = 0; i < text.len; i++) {
    unsigned char c = (unsigned char)text.data[i];
    if (!extra_of(c))
      continue;
    out = json_raw(out, view_sub(text, clean, i - clean));
    out = escape(out, c);
    clean = i + 1;
  }
  out = json_raw(out, view_sub(text, clean, text.len));
  *out++ = '"';
  return out;
}

size_t json_base64_size(view_s bytes) {
  return (bytes.len + 2) / 3 * 4 + 2;
}

/* In pieces of whole groups, since the library counts in int and ends with NUL.
 */
char *json_base64_write(char *out, view_s bytes) {
  *out++ = '"';
  for (size_t at = 0; at < bytes.len; at += 3 * 1024) {
    view_s piece = view_sub(bytes, at, 3 * 1024);
    out += EVP_EncodeBlock((unsigned char *)out,
                           (const unsigned char *)piece.data, (int)piece.len);
  }
  *out++ = '"';
  return out;
}
