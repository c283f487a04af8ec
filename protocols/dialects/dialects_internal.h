/* dialects_internal.h - what dialects share. */
#ifndef CRIER_DIALECTS_INTERNAL_H
#define CRIER_DIALECTS_INTERNAL_H

#include "facil/dialects.h"
#include "facil/pubsub.h"

extern dialect_settings_s dialect_settings;

/* The routes of each dialect; ends with one whose method is NULL. */
extern const http_route_s publish_routes[];
extern const http_route_s native_routes[];
extern const http_route_s health_routes[];
extern const http_route_s assets_routes[];

#define NUMBER_MAX 20 /* digits of a 64-bit number */

/* Write a number in decimal; returns its length. */
size_t number_write(char *out, uint64_t n);

/* Check the query of `h`: only the parameters in `known` (n names), each at
 * most once, and no bad escapes. NULL, or a static sentence. */
const char *query_fault(const http_s *h, const view_s *known, size_t n);

/* The value of a parameter, percent-decoded into `out` (cap bytes, '+' stays).
 * Its length; -1: it is not there, does not decode, or does not fit. */
ssize_t query_value(const http_s *h, view_s name, char *out, size_t cap);

#endif
