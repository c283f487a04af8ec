/* dialects_internal.h - what dialects share. */
#ifndef CRIER_DIALECTS_INTERNAL_H
#define CRIER_DIALECTS_INTERNAL_H

#include "facil/dialects.h"
#include "facil/pubsub.h"

extern dialect_settings_s dialect_settings;

/* The routes of each dialect; ends with one whose method is NULL. */
extern const http_route_s publish_routes[];
extern const http_route_s subscribe_routes[];
extern const http_route_s channels_routes[];
extern const http_route_s batch_routes[];
extern const http_route_s health_routes[];
extern const http_route_s assets_routes[];

/* Long polls are answered: the broker is about to stop. */
void history_notice(void);

#define NUMBER_MAX 20 /* digits of a 64-bit number */

/* Write a number in decimal; returns its length. */
size_t number_write(char *out, uint64_t n);

/* NULL if `key` may be an idempotency key (1 to 128 bytes of text). */
const char *key_fault(view_s key);

/* Why a publish was not taken: what to say with the status. */
const char *publish_fault(int status);

/* NULL if `event` may be a message's event name; else a static sentence. */
const char *event_fault(view_s event);

#endif
