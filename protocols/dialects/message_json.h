/* message_json.h - a message as a JSON object:
 * {"op":"message","channel":C,"id":N,"type":T,"data":D,"event":E}, where JSON
 * is "data" as it came, text a string, and other bytes "data64"; "op" only on
 * demand. Private to dialects. */
#ifndef CRIER_MESSAGE_JSON_H
#define CRIER_MESSAGE_JSON_H

#include "facil/engine.h"

size_t message_json_size(const message_s *m, bool has_op);

/* Write it; returns the end. */
char *message_json_write(char *out, const message_s *m, bool has_op);

#endif
