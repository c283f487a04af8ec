/* pubsub_internal.h - what the files of pubsub share.
 *
 * A channel has a run for each kind of reader that it has: the readers of that
 * kind, and the tail of frames made for them. Places in a run count the bytes
 * of its frames since the run began, so a reader at `end` has everything,
 * whether there is a tail or not. */
#ifndef CRIER_PUBSUB_INTERNAL_H
#define CRIER_PUBSUB_INTERNAL_H

#include "facil/pubsub.h"

typedef struct channel_s channel_s;
typedef struct tail_s tail_s;
typedef struct slice_s slice_s;

typedef struct run_s {
  facil_set_s readers;
  channel_s *channel;
  const reader_kind_s *kind; /* NULL: free for use */
  struct run_s *next;
  tail_s *tail;    /* NULL: all have read everything */
  uint64_t end;    /* the place behind the last frame */
  uint32_t caught; /* readers that are at `end` */
} run_s;

struct channel_s {
  channel_s *next; /* in its bucket */
  uint64_t hash;
  uint64_t last_id; /* of its messages all up to this one came here */
  engine_ref_s ref;
  list_s waiters;
  bool is_pattern; /* the name is one, and its messages are of many channels */
  bool keeps;      /* what is missed is in the store */
  uint8_t name_len;
  run_s first; /* most channels have readers of one kind */
  char name[];
};

/* A piece of a tail: frames that lie in one buffer. */
typedef struct {
  const char *data;
  size_t len;
  facil_buf_s *owner;
} piece_s;

/* A frame in a tail. */
typedef struct {
  uint64_t id, end; /* its last byte is before place `end` */
  intptr_t origin;  /* the connection that does not get it, 0: none */
} frame_s;

/* ---- tail.c ------------------------------------------------------------ */
void tail_limits(size_t size, size_t total);
/* Make the frame of `m` and append it, before channel->last_id is m's. Without
 * memory it is lost, with all that the tail held. */
void tail_append(run_s *run, const message_s *m);
void tail_free(run_s *run);
/* Something that has no frame came: every reader finds a gap, up to what
 * channel->last_id is from here on. Takes no memory. */
void tail_lose(run_s *run);
uint64_t tail_start(const run_s *run);      /* first place that is kept */
uint64_t tail_trimmed_id(const run_s *run); /* the last id that is not kept */
bool tail_has_origins(const run_s *run);
/* The frame that holds place `at` (start <= at < end). */
const frame_s *tail_frame(const run_s *run, uint64_t at);
/* The frame behind `f`, which is not the last one. */
const frame_s *tail_next(const run_s *run, const frame_s *f);
/* The bytes from `at` on that lie together, at most up to place `to`. */
piece_s tail_piece(const run_s *run, uint64_t at, uint64_t to);
bool tail_can_grow(void);          /* false: a full tail waits for its walk */
void tail_read_by_all(run_s *run); /* may be given back in the next turn */
void tail_turn(void);
void tail_count(size_t *tails, size_t *bytes);

/* The place behind the last frame with an id up to `id`. */
uint64_t tail_place(const run_s *run, uint64_t id);

/* ---- catchup.c --------------------------------------------------------- */
/* `s` lacks what its tail does not keep: offer it from the store. */
void catchup_ready(reader_s *r, subscription_s *s);
size_t catchup_sent(reader_s *r, size_t sent);
void catchup_drop(reader_s *r); /* the reader ends */
void catchup_forget(void);      /* once a turn, and when a channel goes */

/* ---- waiter.c ---------------------------------------------------------- */
void waiters_tell(channel_s *c);

/* ---- pattern.c --------------------------------------------------------- */
int pattern_add(channel_s *c); /* -1: no memory */
void pattern_remove(channel_s *c);
void pattern_each_match(const message_s *m,
                        void (*each)(channel_s *c, const message_s *m));

/* ---- pubsub.c ---------------------------------------------------------- */
/* Put a reader whose cursor has moved where it belongs: into the tail if that
 * keeps all behind the cursor. */
void reader_settle(const reader_s *r, subscription_s *s);
/* Whether a message may come to the reader by two of its subscriptions. */
bool reader_overlaps(const reader_s *r);

/* One more, one less watches a channel: the id up to which all is delivered. */
uint64_t channel_watch(channel_s *c);
void channel_unwatch(channel_s *c);

/* ---- channel.c --------------------------------------------------------- */
extern const engine_s *engine;
extern pubsub_settings_s pubsub_settings;
channel_s *channel_find(view_s name, uint64_t hash);
/* Makes it; NULL: ENOMEM. A name with a '*' is a pattern. */
channel_s *channel_get(view_s name, uint64_t hash);
void channel_drop(channel_s *c); /* if nobody is left */
run_s *run_get(channel_s *c, const reader_kind_s *kind);
view_s channel_name(const channel_s *c);
void channel_each(void (*each)(channel_s *c, void *arg), void *arg);
size_t channel_total(void);

#endif
