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

/* NULL if `event` may be a message's event name; else a static sentence. */
const char *event_fault(view_s event);

#endif
